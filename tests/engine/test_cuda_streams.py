"""Which products a step takes: few rows stream, and what they leave is found by whoever comes next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from benchmarks.gpu_models import LLAMA_8B, QWEN25_7B
from torch import Tensor

from engine.engines import NUM_PAGES, PAGE_SIZE, PROMPTS
from engine.random_models import SPECS, random_weights
from engine.step_driver import Driver
from twinpath.engine.cuda import forward as passes
from twinpath.engine.cuda import graphs
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.step import StepLauncher
from twinpath.engine.cuda.streams import make_streams, projection_shapes
from twinpath.engine.cuda.weights import PackedWeights, pack_weights
from twinpath.kernels.stream_linear.spec import LinearShape


class PlainStreams:
    """The streamed products' plain twin: one result, overwritten by the next product."""

    def __init__(self, weights: PackedWeights, x: Tensor, attended: Tensor, gated: Tensor) -> None:
        self._weights, self._x, self._attended, self._gated = weights, x, attended, gated
        self._result = torch.zeros(0)
        self.num_products = 0
        self.layers: PlainLayers | None = None

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        self._result.fill_(float("nan"))
        self._result = x @ weight.T
        self.num_products += 1
        return self._result

    def qkv(self, layer: int, num_rows: int) -> Tensor:
        return self._product(self._x[:num_rows], self._weights.layers[layer].qkv)

    def o(self, layer: int, num_rows: int) -> Tensor:
        return self._product(self._attended[:num_rows], self._weights.layers[layer].o)

    def gate(self, layer: int, num_rows: int) -> None:
        gates, ups = (self._x[:num_rows] @ self._weights.layers[layer].gate_up.T).chunk(2, dim=1)
        self._gated[:num_rows] = F.silu(gates) * ups

    def down(self, layer: int, num_rows: int) -> Tensor:
        return self._product(self._gated[:num_rows], self._weights.layers[layer].down)

    def logits(self, x: Tensor, out: Tensor) -> None:
        out.copy_(x @ self._weights.head.T)

    def change(self, num_rows: int) -> Tensor:
        return self._result


class PlainLayers:
    """The plain twin of a layer's products in one launch."""

    def __init__(self, streams: PlainStreams) -> None:
        self._streams = streams
        self.num_layers = 0

    def run(self, index: int, residual: Tensor) -> None:
        streams, num_rows = self._streams, len(residual)
        layers, eps = streams._weights.layers, streams._weights.spec.norm_eps

        def norm(gain: Tensor) -> None:
            scale = (residual.square().mean(dim=1, keepdim=True) + eps).rsqrt()
            streams._x[:num_rows] = residual * scale * gain

        residual += streams.o(index, num_rows)
        norm(layers[index].mlp_norm)
        streams.gate(index, num_rows)
        residual += streams.down(index, num_rows)
        self.num_layers += 1
        if index + 1 < len(layers):
            norm(layers[index + 1].attn_norm)
            streams.qkv(index + 1, num_rows)

    def qkv(self, num_rows: int) -> Tensor:
        return self._streams.change(num_rows)


def build() -> CudaEngine:
    spec = SPECS["qwen2"]
    packed = pack_weights(spec, random_weights(spec), torch.device("cpu"), torch.float32, spec.max_position)
    options = CudaOptions(
        device="cpu", kernels="plain", graphs=False, page_size=PAGE_SIZE, num_pages=NUM_PAGES, max_slots=6,
        max_step_tokens=128,
    )  # fmt: skip
    return CudaEngine(packed, options)


def logprobs(engine: CudaEngine) -> list[float]:
    """Of the chosen tokens: a chunk of 30 rows, the prompt's last 7, three decode steps."""
    driver = Driver(engine, logprobs=5)
    sequence = driver.sequence(1, PROMPTS[0])
    found: list[float] = []
    for step in range(5):
        inits = [sequence] if step == 0 else []
        result = driver.run([driver.chunk(sequence, 30 if step == 0 else None)], inits=inits)
        found += [entry.logprob for entries in result.logprobs.values() for entry in entries]
    return found


@pytest.mark.parametrize("in_one_launch", [False, True], ids=["products", "whole layers"])
def test_few_rows_of_captured_steps_stream_and_say_the_same(
    monkeypatch: pytest.MonkeyPatch, in_one_launch: bool
) -> None:
    right = logprobs(build())
    monkeypatch.setattr(passes, "STREAMED_ROWS", 16)
    engine = build()
    launcher = engine.launcher
    assert isinstance(launcher, StepLauncher)
    forward = launcher._forward
    streams = PlainStreams(forward.weights, forward._x, forward._attended, forward._gated)
    layers = PlainLayers(streams)
    streams.layers = layers if in_one_launch else None
    forward._streams = streams  # type: ignore[assignment]
    # Nothing is captured: the library serves, but for the logits.
    assert logprobs(engine) == pytest.approx(right, abs=1e-4)
    assert streams.num_products == 0
    monkeypatch.setattr(graphs, "_capture", lambda run, _: SimpleNamespace(replay=run))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    launcher.capture(None)
    got = logprobs(engine)
    assert got == pytest.approx(right, abs=1e-4) and len(got) == 4
    # The chunk of 30 rows goes to the library.
    assert streams.num_products == 4 * 3 * engine.info.num_layers
    assert layers.num_layers == (4 * engine.info.num_layers if in_one_launch else 0)


def test_shapes_are_those_of_the_weights() -> None:
    assert projection_shapes(LLAMA_8B) == {
        "qkv": LinearShape(6144, 4096),
        "o": LinearShape(4096, 4096),
        "gate_up": LinearShape(14_336, 4096, gated=True),
        "down": LinearShape(4096, 14_336),
    }
    assert projection_shapes(QWEN25_7B)["qkv"] == LinearShape(4608, 3584)


def test_no_card_no_streams() -> None:
    forward: Forward = build().launcher._forward  # type: ignore[attr-defined]
    assert make_streams(forward.weights, forward._x, forward._attended, forward._gated) is None
