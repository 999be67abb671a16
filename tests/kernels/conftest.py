"""Kernels run on the card when there is one, else on the CPU under Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

#: Triton is made for Linux only.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
