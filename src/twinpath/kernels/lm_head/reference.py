"""Logits and their best in plain torch, float64."""

from __future__ import annotations

import torch

from twinpath.kernels.linear.reference import linear


def lm_head(x: torch.Tensor, weight: torch.Tensor, squares: torch.Tensor, eps: float) -> torch.Tensor:
    """Logits, float64 [B, V]."""
    return linear(x, weight, None, squares, eps)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The lowest id among the largest of each row, [B]. (torch's own argmax promises no order among equal ones.)"""
    is_best = logits == logits.max(dim=1, keepdim=True).values
    ids = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    return torch.where(is_best, ids, logits.shape[1]).min(dim=1).values
