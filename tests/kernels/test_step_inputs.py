"""The input kernels against their plain twins."""

from __future__ import annotations

import torch

from twinpath.kernels.prefill_rows.spec import Rows
from twinpath.kernels.step_inputs import launch, reference


def test_updates_go_where_they_say(device: torch.device) -> None:
    words = torch.arange(3000, dtype=torch.int32, device=device)
    where = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:1500].int().to(device)
    pairs = torch.stack((where, -where - 1), dim=1)
    other = words.clone()
    launch.update_words(words, pairs)
    reference.update_words(other, pairs)
    assert torch.equal(words, other)
    assert int((words < 0).sum()) == 1500


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
