"""Turns plans into device work: what each launches, piece by piece, and what its results mean."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twinpath.engine.cuda.forward import FEW_ROWS, LONG_CONTEXT, Chunk, Forward
from twinpath.engine.cuda.graphs import Captures, DecodeGraphs, StepGraphs, capture_graphs, decode_shape, launched_rows
from twinpath.engine.cuda.inputs import InputBlocks, InputViews, Mark, StepInputs, make_mark
from twinpath.engine.cuda.logprobs import KeptLogits, PromptScorer, prompt_logprobs, wants_prompt
from twinpath.engine.cuda.memory import NUM_RESIDUALS
from twinpath.engine.cuda.ops import Operations
from twinpath.engine.cuda.residuals import ResidualStore
from twinpath.engine.cuda.rows import Binder, Shape, StepRows, write_rows
from twinpath.engine.cuda.slots import SlotTables, aligned
from twinpath.engine.step_output import StepOutput
from twinpath.kernels.prefill_attention.spec import AttentionTiling, rows_per_tile
from twinpath.kernels.sampler.slots import fill_tables
from twinpath.kernels.sampler.spec import FAILURES, MAX_TOP, NUM_SCORES, OK, Workspace, entry_of
from twinpath.types import EngineInfo, StepPlan, TokenLogprob

if TYPE_CHECKING:
    from twinpath.engine.cuda.decode import DecodeStep


@dataclass(frozen=True, slots=True)
class Piece:
    """Work that is launched in one go, and how many layers it computes."""

    launch: Callable[[], None]
    num_layers: int
    #: It samples with the plan's masks, which the host may still be filling.
    needs_masks: bool = False
    #: A graph whose first kernel fetches the step's inputs.
    fetches: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A plan on its way through the device."""

    plan: StepPlan
    rows: StepRows = field(default_factory=StepRows)
    #: Of a started job whose first piece was not launched yet.
    inputs: StepInputs | None = None
    #: None until the job was started.
    pieces: deque[Piece] | None = None
    #: Of launched pieces, oldest first.
    marks: deque[tuple[Mark, int]] = field(default_factory=deque)
    output: StepOutput = field(default_factory=StepOutput)
    #: Which of the ring's host buffers carry its masks and results.
    ring: int = 0
    started_s: float = 0.0
    stop: bool = False
    interrupted: bool = False

    @property
    def num_ahead(self) -> int:
        """Pieces with layers that were launched and are not done."""
        return sum(num_layers > 0 for _, num_layers in self.marks)

    @property
    def is_launched(self) -> bool:
        return self.pieces is not None and not self.pieces


class StepLauncher:
    """Starts jobs, launches their pieces and reads their results, always in order."""

    def __init__(
        self, forward: Forward, operations: Operations, tables: SlotTables, info: EngineInfo, tiling: AttentionTiling
    ) -> None:
        device = tables.words.device
        self._forward, self._ops, self._tables, self._info = forward, operations, tables, info
        self._graphs: StepGraphs | None = None
        self._binder = Binder(tables, info)
        self._tile_rows = rows_per_tile(forward.shape, tiling)
        rings, picks = info.depth + 2, aligned(info.max_slots)
        self._blocks = InputBlocks(rings, self._shape(info.max_step_tokens).num_words + 2 * tables.max_updates, device)
        max_rows = aligned(info.max_step_tokens)
        self._residual = torch.zeros(max_rows, info.hidden_size, dtype=torch.float32, device=device)
        self._residuals = ResidualStore(NUM_RESIDUALS, max_rows, info.hidden_size, device)
        self._work = Workspace.allocate(picks, info.vocab_size, device)
        pinned = device.type == "cuda"
        self._results = [torch.zeros(2, picks, dtype=torch.int32, pin_memory=pinned) for _ in range(rings)]
        self._scores = [torch.zeros(picks, NUM_SCORES, dtype=torch.float64, pin_memory=pinned) for _ in range(rings)]
        words = -(-info.vocab_size // 32)
        self._masks = [torch.zeros(picks, words, dtype=torch.int32, pin_memory=pinned) for _ in range(rings)]
        self._kept = KeptLogits(rings, picks, info.vocab_size, device)
        self._scorer = PromptScorer(forward, operations.score_rows, tables.state, self._work)
        self._device = device
        self._free_marks: list[Mark] = []
        self._next_ring = 0

    def capture(self, step: DecodeStep | None) -> None:
        """Capture every graph; from now on decode steps run as `step` and short prefills as graphs."""
        self._blocks.clear()
        captures = Captures(
            self._forward,
            self._ops,
            self._tables.state,
            self._work,
            self._residual,
            self._views,
            self._shape,
            self._info,
            self._fetch,
        )
        self._graphs = capture_graphs(captures, step)
        max_rows = self._info.max_step_tokens
        # Every kernel is compiled before ready, those of steps that are not captured too.
        for most, share in ((max_rows, False), (FEW_ROWS, True)):
            if not share or self._forward.shares_contexts:
                rows = self._views(self._shape(min(most, max_rows))).rows
                self._forward.layer(0, rows, self._residual[: len(rows.tokens)], first=True, share=share)
        self._forward.warm_products(sorted({min(launched_rows(n), max_rows) for n in range(1, max_rows + 1)}))
        self._scorer.warm_up(self._residual)
        padding = self._views(self._shape(1))
        self._forward.finish_layers(self._info.num_layers - 1, self._residual[: len(padding.rows.tokens)])
        self._forward.logits(padding.picked[:1], self._residual)
        self._fetch()
        self._blocks.clear()

    def start(self, job: Job) -> None:
        """Bind, check and lay out the plan and say which pieces it has."""
        plan = job.plan
        job.started_s = time.perf_counter()
        job.rows = rows = self._binder.resolve(plan)
        job.output.failures.update(rows.failures)
        decode, shape = self._choose(plan, rows)
        job.ring = self._next_ring
        self._next_ring = (job.ring + 1) % len(self._results)
        masks = {} if plan.masks is None else {index: i for i, index in enumerate(plan.masks.segments.tolist())}
        chunks = self._chunks(rows) if decode is None else []
        words = np.empty(shape.num_words + sum(pairs.size for pairs in rows.pairs), np.int32)
        write_rows(rows, shape, self._tile_rows, words, lambda index: masks.get(index, -1), {c.row for c in chunks})
        job.inputs = StepInputs(words, shape.num_words)
        for init in rows.inits:
            fill_tables(self._tables.state, init.slot, init.sampling, init.history, init.num_prompt)
        if not rows.runs:
            self._send(job, fetches=False)
            self._binder.release(plan)
            job.pieces = deque()
        elif decode is not None:
            job.pieces = deque(self._decode_pieces(job, decode))
        else:
            job.pieces = deque(self._forward_pieces(job, shape, chunks))

    def launch(self, job: Job) -> None:
        """Launch the next piece of a started job."""
        assert job.pieces
        piece = job.pieces.popleft()
        self._send(job, fetches=piece.fetches)
        piece.launch()
        mark = self._free_marks.pop() if self._free_marks else make_mark(self._device)
        mark.record()
        job.marks.append((mark, piece.num_layers))

    def collect(self, job: Job) -> int:
        """Forget the marks that were reached; returns how many layers that were."""
        num_layers = 0
        while job.marks and job.marks[0][0].query():
            mark, layers = job.marks.popleft()
            self._free_marks.append(mark)
            num_layers += layers
        return num_layers

    def drop(self, job: Job) -> None:
        """The job was left; nothing of it counts but what it says of the slots' tables."""
        self._send(job, fetches=False)

    def finish(self, job: Job) -> StepOutput:
        """What the job produced, once its last mark was reached."""
        output, results = job.output, self._results[job.ring]
        if job.plan.layer_end < self._info.num_layers:
            return output
        tokens, codes = results.tolist()
        for index, run in enumerate(job.rows.sampled):
            reason = run.bound.failure or output.failures.get(run.index)
            if reason is None and codes[index] != OK:
                reason = FAILURES[codes[index]]
            if reason is not None:
                run.bound.failure = output.failures[run.index] = reason
                continue
            output.tokens[run.index] = tokens[index]
            run.bound.tokens.append(tokens[index])
            if run.bound.sampling.logprobs is not None:
                num_top = run.bound.sampling.logprobs
                output.logprobs[run.index] = [self._logprob(job.ring, index, tokens[index], num_top)]
        return output

    def _send(self, job: Job, *, fetches: bool) -> None:
        """Put the job's inputs where the card fetches them; it does so now unless the next piece `fetches`."""
        if job.inputs is None:
            return
        self._blocks.put(job.inputs)
        job.inputs = None
        if not fetches:
            self._fetch()

    def _fetch(self) -> None:
        self._blocks.fetch(self._ops.fetch_inputs, self._tables.words)

    def _choose(self, plan: StepPlan, rows: StepRows) -> tuple[DecodeGraphs | None, Shape]:
        """Decode graphs where every segment is one row that runs and samples, all layers; else the rows' shape."""
        num_rows, graphs = rows.num_rows, self._graphs
        is_whole = plan.layer_begin == 0 and plan.layer_end == self._info.num_layers
        is_decode = num_rows == len(plan.slots) == len(rows.sampled) and not any(map(wants_prompt, rows.runs))
        if graphs is not None and is_whole and is_decode and (tier := graphs.decode_tier(num_rows)) is not None:
            return graphs.decode[tier], decode_shape(tier)
        tier = graphs.prefill_tier(num_rows) if graphs is not None and is_whole else None
        if tier is not None and not self._shares(rows):
            return None, self._shape(tier)
        return None, self._shape(min(launched_rows(num_rows), self._info.max_step_tokens))

    def _shares(self, rows: StepRows) -> bool:
        """Whether programs share the step's contexts: few rows after a long one."""
        longest = max((run.start + run.length for run in rows.runs), default=0)
        return self._forward.shares_contexts and rows.num_rows <= FEW_ROWS and longest > LONG_CONTEXT

    def _chunks(self, rows: StepRows) -> list[Chunk]:
        """Runs whose attention the library does."""
        library = self._forward.library
        if library is None:
            return []
        return [
            Chunk(run.row, run.length, run.start, run.slot) for run in rows.runs if library.fits(run.start, run.length)
        ]

    def _shape(self, num_rows: int) -> Shape:
        slots = min(self._info.max_slots, num_rows)
        return Shape(aligned(num_rows), num_rows // self._tile_rows + slots, aligned(slots))

    def _views(self, shape: Shape) -> InputViews:
        return self._blocks.views(shape, self._tables.tables, self._tables.history)

    def _decode_pieces(self, job: Job, graphs: DecodeGraphs) -> list[Piece]:
        num_layers = self._info.num_layers
        if job.plan.masks is None:
            return [Piece(partial(self._decode, job, graphs), num_layers, fetches=True)]
        return [
            Piece(graphs.forward.replay, num_layers, fetches=True),
            Piece(partial(self._sample_decoded, job, graphs), 0, needs_masks=True),
        ]

    def _decode(self, job: Job, graphs: DecodeGraphs) -> None:
        (graphs.greedy if job.rows.is_greedy else graphs.full).replay()
        self._take_results(job, graphs.logits)

    def _sample_decoded(self, job: Job, graphs: DecodeGraphs) -> None:
        self._sample(job, graphs.views, graphs.logits)

    def _forward_pieces(self, job: Job, shape: Shape, chunks: list[Chunk]) -> list[Piece]:
        plan, views = job.plan, self._views(shape)
        if plan.residual is None:
            residual = self._residual
        elif plan.layer_begin == 0:
            residual = self._residuals.begin(plan.residual)
        else:
            residual = self._residuals.resume(plan.residual)
        residual = residual[: shape.rows]
        is_whole = plan.layer_begin == 0 and plan.layer_end == self._info.num_layers
        share = self._shares(job.rows)
        captured = self._graphs.prefill.get(shape.rows) if self._graphs is not None else None
        if not is_whole or plan.residual is not None or share:
            captured = None
        end = partial(self._finish_forward, job, views, residual, is_captured=captured is not None)
        finish = Piece(end, 0, needs_masks=plan.masks is not None)
        if captured is not None:
            pieces = (Piece(graph.replay, num, fetches=i == 0) for i, (graph, num) in enumerate(captured.pieces))
            return [*pieces, finish]
        layers = range(plan.layer_begin, plan.layer_end)
        run = partial(self._layer, plan, views, residual, chunks, share)
        return [*(Piece(partial(run, index), 1) for index in layers), finish]

    def _layer(
        self, plan: StepPlan, views: InputViews, residual: Tensor, chunks: list[Chunk], share: bool, index: int
    ) -> None:
        if index == 0:
            self._forward.embed(views.rows, residual)
        first = index == plan.layer_begin
        self._forward.layer(index, views.rows, residual, first=first, chunks=chunks, share=share)

    def _finish_forward(self, job: Job, views: InputViews, residual: Tensor, *, is_captured: bool) -> None:
        plan = job.plan
        self._forward.finish_layers(plan.layer_end - 1, residual, streamed=is_captured)
        if plan.layer_end == self._info.num_layers:
            prompt_logprobs(job.rows.runs, self._scorer, residual, job.output)
            num_sampled = len(job.rows.sampled)
            if num_sampled:
                self._sample(job, views, self._forward.logits(views.picked[:num_sampled], residual))
                return
        self._binder.release(plan)

    def _sample(self, job: Job, views: InputViews, logits: Tensor) -> None:
        masks, num = job.plan.masks, len(job.rows.sampled)
        if masks is not None:
            masks.wait()
            host = self._masks[job.ring][: len(masks.words)]
            host.copy_(torch.from_numpy(masks.words))
            self._work.allowed[: len(host)].copy_(host, non_blocking=True)
        self._ops.sample_rows(
            logits, views.slots[:num], views.positions[:num], views.masks[:num], self._tables.state, self._work,
            num_rows=num, greedy=job.rows.is_greedy,
        )  # fmt: skip
        self._take_results(job, logits)

    def _take_results(self, job: Job, logits: Tensor) -> None:
        self._results[job.ring].copy_(self._work.results, non_blocking=True)
        wanted = [run.bound.sampling.logprobs for run in job.rows.sampled]
        if any(num_top is not None for num_top in wanted):
            self._scores[job.ring].copy_(self._work.scores, non_blocking=True)
        for index, num_top in enumerate(wanted):
            if num_top is not None and num_top > MAX_TOP:
                self._kept.keep(job.ring, index, logits[index])
        self._binder.release(job.plan)

    def _logprob(self, ring: int, index: int, token: int, num_top: int) -> TokenLogprob:
        if num_top > MAX_TOP:
            return self._kept.logprob(ring, index, token, num_top)
        return entry_of(self._scores[ring][index].numpy(), token, num_top)
