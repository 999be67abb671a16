"""Fixed products: right, and a row's bits do not depend on the other rows."""

from __future__ import annotations

import pytest
import torch

from twinpath.kernels.fixed_linear.launch import linear


@pytest.mark.parametrize(("outputs", "summed"), [(48, 96), (70, 300)])
def test_rows_have_the_same_bits_in_any_company(outputs: int, summed: int, device: torch.device) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, summed, generator=generator).to(device, dtype)
    w = torch.randn(outputs, summed, generator=generator).to(device, dtype)
    whole = torch.full((200, outputs), torch.nan, device=device)
    linear(x, w, whole)
    right = x.double() @ w.double().t()
    assert float((whole.double() - right).norm() / right.norm()) < 1e-6
    for first, num in ((0, 1), (7, 5), (63, 64), (100, 65), (199, 1)):
        part = torch.full((num, outputs), torch.nan, device=device)
        linear(x[first : first + num], w, part)
        assert torch.equal(part, whole[first : first + num])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (28672, 4096)], ids=str)
def test_real_shapes_have_the_same_bits_in_either_tile(shape: tuple[int, int], device: torch.device) -> None:
    outputs, summed = shape
    x = torch.randn(640, summed, device=device, dtype=torch.bfloat16)
    w = torch.randn(outputs, summed, device=device, dtype=torch.bfloat16)
    whole = torch.empty(640, outputs, device=device, dtype=torch.bfloat16)
    linear(x, w, whole)
    for first, num in ((0, 1), (333, 8), (500, 64), (17, 130)):
        part = torch.empty(num, outputs, device=device, dtype=torch.bfloat16)
        linear(x[first : first + num], w, part)
        assert torch.equal(part, whole[first : first + num])
