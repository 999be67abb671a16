"""The input kernels against their plain twins."""

from __future__ import annotations

import torch

from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.kernels.step_inputs import launch, reference


def test_blocks_are_fetched_in_turn(device: torch.device) -> None:
    """More rows and pairs than one load holds, then few; the second block's place comes round again."""
    results = []
    for module in (launch, reference):
        ring = torch.zeros(2, 2 + 20_000, dtype=torch.int32)
        fetched, turn = torch.zeros(1, dtype=torch.int64), torch.tensor([1], device=device)
        if device.type == "cuda":
            ring, fetched = ring.pin_memory(), fetched.pin_memory()
        block = torch.full((9000,), 5, dtype=torch.int32, device=device)
        words = torch.zeros(6000, dtype=torch.int32, device=device)
        for number, (num_rows, num_pairs) in enumerate(((9000, 5000), (3, 1)), start=1):
            places = torch.randperm(6000, generator=torch.Generator().manual_seed(number))[:num_pairs].int()
            pairs = torch.stack((places, -places - number), dim=1)
            rows = torch.arange(num_rows, dtype=torch.int32) * number
            filled = torch.cat((torch.tensor([num_rows, num_pairs], dtype=torch.int32), rows, pairs.flatten()))
            ring[number % 2, : len(filled)] = filled
        for number in (2, 3):
            module.fetch_inputs(ring, turn, fetched, block, words)
            if device.type == "cuda":
                torch.cuda.synchronize()
            assert turn.item() == fetched.item() == number
        results.append((block.tolist(), words.tolist()))
    assert results[0] == results[1]
    assert results[0][0][:5] == [0, 2, 4, 3, 4] and results[0][0][-1] == 8999
    assert sum(word < 0 for word in results[0][1]) in (5000, 5001)


def test_decode_rows_come_from_their_slots(device: torch.device) -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    tables = torch.arange(3 * 4, dtype=torch.int32, device=device).view(3, 4) + 100
    history = torch.arange(3 * 50, dtype=torch.int32, device=device).view(3, 50)
    rows = Rows(ints(7, -1, 3), ints(33, 16, -1), ints(2, 0, -1), ints(), tables, history)
    results = []
    for module in (launch, reference):
        out = (ints(9, 9, 9, 9), ints(9, 9, 9, 9), torch.full((4, 4), 9, dtype=torch.int32, device=device))
        module.feed_decode(rows, 3, *out, 16)
        results.append([part.tolist() for part in out])
    assert results[0] == results[1]
    assert results[0][:2] == [[7, 16, 0, 9], [33, 16, -1, 9]]
    assert results[0][2][:2] == [[108, 109, 110, 9], [100, 101, 9, 9]]
