"""Captured work: decode steps of every batch size, and the layers of short prefills in a few pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.inputs import InputViews
from twinpath.engine.cuda.ops import Operations
from twinpath.engine.cuda.rows import Shape
from twinpath.engine.cuda.slots import aligned
from twinpath.kernels.sampler.spec import SlotState, Workspace
from twinpath.types import EngineInfo

if TYPE_CHECKING:
    from twinpath.engine.cuda.decode import DecodeStep

Pool = Any  # torch names no type for it

#: Batch sizes worth a graph of their own.
DECODE_TIERS = (1, 2, 4, 8, 16, 32, 64)
#: Rows of a step whose launches would take longer than the card's work on them.
PREFILL_TIERS = (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
#: Beyond the tiers rows are padded to the first of these, from `_MANY_ROWS` on to the second: few enough counts that
#: each of the library's products has run once before ready.
_ROW_GRAIN, _MANY_ROW_GRAIN, _MANY_ROWS = 128, 512, 4096
#: Pieces of a captured prefill: between them a step can be left. A border costs the card some microseconds, so that few
#: rows have fewer.
_NUM_PIECES = 4
_FEW_ROWS, _NUM_PIECES_OF_FEW = 128, 2


@dataclass(frozen=True, slots=True)
class DecodeGraphs:
    """One batch size: the whole step, greedy or with every setting, and the step without its sampler."""

    views: InputViews
    greedy: torch.cuda.CUDAGraph
    full: torch.cuda.CUDAGraph
    forward: torch.cuda.CUDAGraph
    #: float32 [tier, vocab], valid until the next step.
    logits: Tensor


@dataclass(frozen=True, slots=True)
class PrefillGraphs:
    """One number of rows: (graph, layers that it computes), in order."""

    views: InputViews
    pieces: tuple[tuple[torch.cuda.CUDAGraph, int], ...]


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """What was captured, by tier."""

    decode: dict[int, DecodeGraphs]
    prefill: dict[int, PrefillGraphs]
    #: Whose buffers and tensor maps the decode graphs use. A graph knows addresses only: were the step forgotten, the
    #: allocator would give its memory to a long prefill, and the next decode step would run on what that left.
    step: DecodeStep | None

    def decode_tier(self, num_rows: int) -> int | None:
        return next((tier for tier in self.decode if tier >= num_rows), None)

    def prefill_tier(self, num_rows: int) -> int | None:
        return next((tier for tier in self.prefill if tier >= num_rows), None)


def launched_rows(num_rows: int) -> int:
    """With how many rows a step of `num_rows` runs that is not captured; the rest is padding."""
    tier = next((tier for tier in PREFILL_TIERS if tier >= num_rows), None)
    if tier is not None:
        return tier
    grain = _ROW_GRAIN if num_rows <= _MANY_ROWS else _MANY_ROW_GRAIN
    return -(-num_rows // grain) * grain


def decode_shape(tier: int) -> Shape:
    return Shape(aligned(tier), 0, aligned(tier))


@dataclass(frozen=True, slots=True)
class Captures:
    """What capturing needs. `views`: where inputs of a shape land; `shape_of`: the shape of a number of rows."""

    forward: Forward
    operations: Operations
    state: SlotState
    work: Workspace
    residual: Tensor
    views: Callable[[Shape], InputViews]
    shape_of: Callable[[int], Shape]
    info: EngineInfo
    #: Brings the next step's inputs: every graph that begins a step begins with it.
    fetch: Callable[[], None]


def capture_graphs(c: Captures, step: DecodeStep | None) -> StepGraphs:
    """Capture everything; the inputs must say that every row is padding. Without a step, decode runs as prefill."""
    pool: Pool = torch.cuda.graph_pool_handle()
    enough = next((tier for tier in DECODE_TIERS if tier >= c.info.max_slots), DECODE_TIERS[-1])
    tiers = [tier for tier in DECODE_TIERS if tier <= enough]
    decode = {tier: _capture_decode(c, step, tier, pool) for tier in tiers} if step is not None else {}
    rows = [tier for tier in PREFILL_TIERS if tier <= c.info.max_step_tokens]
    return StepGraphs(decode, {tier: _capture_prefill(c, tier, pool) for tier in rows}, step)


def _capture_decode(c: Captures, step: DecodeStep, tier: int, pool: Pool) -> DecodeGraphs:
    views, buffers = c.views(decode_shape(tier)), step.buffers

    def forward() -> None:
        c.fetch()
        c.operations.feed_decode(
            views.rows, tier, buffers.tokens, buffers.positions, buffers.block_tables, c.info.page_size
        )
        step.launch(tier)

    def whole(greedy: bool) -> None:
        forward()
        c.operations.sample_rows(
            buffers.logits[:tier], views.slots, views.positions, views.masks, c.state, c.work,
            num_rows=tier, greedy=greedy,
        )  # fmt: skip

    return DecodeGraphs(
        views,
        greedy=_capture(lambda: whole(True), pool),
        full=_capture(lambda: whole(False), pool),
        forward=_capture(forward, pool),
        logits=buffers.logits[:tier],
    )


def _capture_prefill(c: Captures, tier: int, pool: Pool) -> PrefillGraphs:
    views, residual = c.views(c.shape_of(tier)), c.residual[:tier]
    pieces: list[tuple[torch.cuda.CUDAGraph, int]] = []
    size = -(-c.info.num_layers // (_NUM_PIECES if tier > _FEW_ROWS else _NUM_PIECES_OF_FEW))
    for begin in range(0, c.info.num_layers, size):
        layers = range(begin, min(begin + size, c.info.num_layers))

        def run(layers: range = layers) -> None:
            if layers.start == 0:
                c.fetch()
                c.forward.embed(views.rows, residual)
            for layer in layers:
                c.forward.layer(layer, views.rows, residual, first=layer == 0, streamed=True)

        pieces.append((_capture(run, pool), len(layers)))
    return PrefillGraphs(views, tuple(pieces))


def _capture(run: Callable[[], None], pool: Pool) -> torch.cuda.CUDAGraph:
    """Run once, so that everything is compiled, then capture."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    return graph
