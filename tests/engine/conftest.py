"""Fixtures of the contract suite: every engine in turn, over one poisoned model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.engines import ENGINES, Build, driver_of, poisoned_model
from engine.step_driver import Driver
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights

# Tiny models: a second thread only waits, and spins while it does.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> tuple[ModelSpec, Weights]:
    return poisoned_model()


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest) -> Build:
    chosen: Build = request.param
    return chosen


@pytest.fixture
def driver(build: Build, model: tuple[ModelSpec, Weights]) -> Iterator[Driver]:
    engine = build(*model)
    yield driver_of(engine)
    engine.close()
