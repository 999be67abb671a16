"""Fixtures that every room may use."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    # Read when a kernel's module is first imported, by whatever test that is.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure() -> None:
    """Generated examples are never judged by the time they take."""
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import HealthCheck, settings

        settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests say why they do not run; everything else runs everywhere."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = gpu_missing() if gpu_items else None
    if reason:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def gpu_missing() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched by the project's own source code into the cache that `twinpath serve` uses."""
    from twinpath.cli.app import DEFAULT_MODEL
    from twinpath.cli.resolve import cache_dir
    from twinpath.model.source import resolve

    return resolve(DEFAULT_MODEL, cache_dir(), lambda done, total, what: None).path
