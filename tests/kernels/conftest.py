"""Kernels run on the card when there is one, else on the CPU under Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
