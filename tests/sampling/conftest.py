"""Both samplers behind one callable, so that every behaviour test runs on each."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import twinpath.native
from twinpath.native.sampler import NativeSampler
from twinpath.sampling import sample
from twinpath.types import SamplingParams, TokenLogprob

Draw = Callable[..., tuple[int, TokenLogprob | None]]


@pytest.fixture(scope="session")
def sampler_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The sampler alone, built as the package builds it: these tests need no kernel set."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "the native sampler needs a C++ compiler"
    source = Path(twinpath.native.__file__).parent / "csrc" / "sampler.cpp"
    library = tmp_path_factory.mktemp("sampler") / "libsampler.so"
    flags = ["-O3", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True, timeout=120)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="session")
def draw_natively(sampler_library: ctypes.CDLL) -> Iterator[Draw]:
    """`sampling.sample` by the native sampler: half the history by `reset`, the rest by `append`."""
    samplers: dict[int, NativeSampler] = {}

    def draw(
        logits: np.ndarray,
        params: SamplingParams,
        history: np.ndarray,
        num_prompt: int,
        position: int,
        mask: np.ndarray | None = None,
    ) -> tuple[int, TokenLogprob | None]:
        if len(logits) not in samplers:
            samplers[len(logits)] = NativeSampler(sampler_library, len(logits), 3)
        sampler = samplers[len(logits)]
        known = (num_prompt + len(history)) // 2
        sampler.reset(1, params, history[:known], num_prompt)
        for token in history[known:].tolist():
            sampler.append(1, token)
        token = sampler.sample(1, logits, position, mask)
        if params.logprobs is None:
            return token, None
        return token, sampler.token_logprob(logits, token, params.logprobs)

    yield draw
    for sampler in samplers.values():
        sampler.close()


@pytest.fixture(params=["reference", "native"])
def draw(request: pytest.FixtureRequest) -> Draw:
    """One sampler: (logits, params, history, num_prompt, position[, mask]) -> (token, log-probability)."""
    if request.param == "reference":
        return sample
    native: Draw = request.getfixturevalue("draw_natively")
    return native
