"""The vendor's product: any order of sums."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, w: Tensor, out: Tensor) -> None:
    """As `launch.linear`, but a row's last bits may depend on how many rows there are."""
    if out.dtype == x.dtype:
        torch.mm(x, w.t(), out=out)
    elif x.is_cuda:
        torch.mm(x, w.t(), out_dtype=out.dtype, out=out)
    else:
        out.copy_(x @ w.t())
