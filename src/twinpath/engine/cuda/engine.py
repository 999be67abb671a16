"""The CUDA engine: the Engine contract over captured decode steps and ragged prefills, several plans deep.

One thread submits and polls, and it is the one that launches: `submit` launches what the card should have next, `poll`
goes on while it waits. Prefill goes to the card a few pieces ahead of the work, so that it can be left between them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from twinpath.engine.cuda.forward import Forward
from twinpath.engine.cuda.graphs import PREFILL_TIERS
from twinpath.engine.cuda.leader import Launcher, LeadingLauncher
from twinpath.engine.cuda.library import make_library, make_paged
from twinpath.engine.cuda.memory import CudaOptions, describe_memory, fitting_pages, reserve_bytes
from twinpath.engine.cuda.ops import plain_operations, triton_operations
from twinpath.engine.cuda.slots import SlotTables, aligned
from twinpath.engine.cuda.step import Job, StepLauncher
from twinpath.engine.cuda.weights import PackedWeights, allocate_kv
from twinpath.engine.plan_check import check_plan
from twinpath.engine.step_output import interrupted_result
from twinpath.errors import EngineError
from twinpath.kernels.prefill_attention.spec import AttentionTiling, rows_per_tile
from twinpath.types import EngineInfo, StepPlan, StepResult

if TYPE_CHECKING:
    from twinpath.engine.cuda.ranks import Followers, RankGroup

#: Pieces with layers on the card beyond which the host waits before it launches more.
_RUN_AHEAD = 2
#: Waiting this long for one result is a prefill's business: from here on the thread naps between looks.
_SPIN_S = 0.008
_NAP_S = 0.0001


class CudaEngine:
    """Implements `contracts.Engine`.

    Interrupting plan n also interrupts every plan submitted before n's result was polled: those may stand on its keys
    or its token. An interrupted plan is planned again with its inits; its releases have not happened.
    """

    def __init__(
        self,
        weights: PackedWeights,
        options: CudaOptions,
        tiling: AttentionTiling | None = None,
        ranks: RankGroup | None = None,
    ) -> None:
        """ranks: who shares the model; all build their engines at the same time, with the same options."""
        spec, device, dtype = weights.spec, weights.embed.device, weights.embed.dtype
        tiling = tiling or (AttentionTiling.fixed() if options.batch_invariant else AttentionTiling())
        self.weights = weights
        max_model_len = options.max_model_len or spec.max_position
        num_pages = options.num_pages or fitting_pages(weights, options, max_model_len)
        if ranks is not None:
            num_pages = ranks.least("pages", num_pages)
        max_pages = aligned(-(-max_model_len // options.page_size))
        kv = allocate_kv(spec, num_pages, options.page_size, device, dtype)
        operations = plain_operations()
        if options.kernels == "triton":
            operations = triton_operations(spec.vocab_size, device, batch_invariant=options.batch_invariant)
        operations = replace(operations, ranks=None if ranks is None else ranks.collective)
        tables = SlotTables(options.max_slots, spec.vocab_size, max_model_len, max_pages, device)
        library = make_library(weights, options, max_model_len)
        max_rows, max_picks = aligned(options.max_step_tokens), aligned(options.max_slots)
        forward = Forward(weights, kv, operations, max_rows, max_picks, tiling, library)
        num_tiles = max_rows // rows_per_tile(forward.shape, tiling) + max_picks
        forward.paged = make_paged(weights, kv, options, forward.shape, num_tiles)
        # Chunks of any length then attend about as fast as the library's.
        grain = 1 if library is None or forward.paged is not None else library.grain
        self._info = _describe(weights, options, max_model_len, num_pages, grain)
        if options.kernels == "triton" and not options.batch_invariant and weights.shard.is_whole:
            forward.stream_products()
        launcher = StepLauncher(forward, operations, tables, self._info, tiling)
        if options.graphs:
            from twinpath.engine.cuda.decode import DecodeStep  # needs Triton, which a CPU may lack

            persistent = weights.shard.is_whole or options.shared_persistent
            step = None
            if not options.batch_invariant:
                step = DecodeStep(weights, kv, max_pages, persistent=persistent, ranks=operations.ranks)
            launcher.capture(step)
        self.launcher: Launcher = launcher
        #: Lines for the start-up table.
        self.facts = describe_memory(weights, options, num_pages, reserve_bytes(weights, options, max_model_len))
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._progress = 0
        self._last_end_s = 0.0
        self._failure: EngineError | None = None
        self._closed = False
        self._followers: Followers | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    def lead(self, followers: Followers) -> None:
        """From here on the other ranks do what this engine does; they end with it."""
        self.launcher, self._followers = LeadingLauncher(self.launcher, followers.channels), followers

    def submit(self, plan: StepPlan) -> int:
        check_plan(plan, self._info)
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if len(self._jobs) >= self._info.depth:
                raise ValueError(f"{len(self._jobs)} plans are outstanding, the engine's depth is {self._info.depth}")
            if any(job.plan.step_id == plan.step_id for job in self._jobs):
                raise ValueError(f"step {plan.step_id} is already outstanding")
            is_next = all(job.is_launched for job in self._jobs)
            self._jobs.append(Job(plan))
        if is_next:  # Else `poll` goes on with what is before it.
            self._advance(is_polled=False)
        return plan.step_id

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        """As the contract says.

        Raises:
            EngineError: the step failed as a whole (device or code), so this engine cannot be used any more.
        """
        if not self._jobs:
            return None
        began_s = time.perf_counter()
        while True:
            self._advance(is_polled=True)
            if self._failure is not None:
                raise self._failure
            job = self._jobs[0]
            if job.interrupted or (job.is_launched and not job.marks):
                return self._take(job)
            waited_s = time.perf_counter() - began_s
            if timeout_s is not None and waited_s >= timeout_s:
                return None
            if waited_s > _SPIN_S:
                time.sleep(_NAP_S)

    def interrupt(self, step_id: int) -> None:
        with self._lock:
            for job in self._jobs:
                if job.plan.step_id == step_id:
                    job.stop = True

    def prepare(self) -> bool:
        return False

    def progress(self) -> int:
        return self._progress

    def close(self) -> None:
        """What is on the card runs to its end; results not polled yet are lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.clear()
        if self._info.device == "cuda" and self._failure is None:
            torch.cuda.synchronize()
        if self._followers is not None:
            self._followers.close()

    def _take(self, job: Job) -> StepResult:
        """The oldest job's result; the others are void when it was interrupted."""
        with self._lock:
            self._jobs.popleft()
            if job.interrupted:
                for later in self._jobs:
                    later.interrupted = True
        now_s = time.perf_counter()
        started_s = max(job.started_s, self._last_end_s) if job.started_s else now_s
        self._last_end_s = now_s
        elapsed_ms = (now_s - started_s) * 1000.0
        if job.interrupted:
            self.launcher.drop(job)
            return interrupted_result(job.plan, elapsed_ms)
        try:
            return replace(self.launcher.finish(job).result(job.plan), elapsed_ms=elapsed_ms)
        except Exception as error:
            raise self._fail(job, error) from error

    def _advance(self, *, is_polled: bool) -> None:
        """Launch what may be launched, in order, and note what the card has done."""
        if self._failure is not None:
            return
        num_ahead = 0
        for job in list(self._jobs):
            try:
                num_ahead += self._advance_job(job, num_ahead, is_polled=is_polled and job is self._jobs[0])
            except Exception as error:  # the caller waits for a result: it must learn that there will be none
                self._fail(job, error)
                return
            if job.interrupted or not job.is_launched:
                return

    def _advance_job(self, job: Job, num_ahead: int, *, is_polled: bool) -> int:
        """Launch pieces of one job while fewer than `_RUN_AHEAD` are ahead; returns how many of its own are."""
        if job.pieces is None and not job.interrupted and not job.stop:
            self.launcher.start(job)
        self._progress += self.launcher.collect(job)
        num_launched = 0
        while not job.is_launched:
            if job.stop or job.interrupted:
                job.interrupted = True
                break
            assert job.pieces
            masks = job.plan.masks
            is_blocked = job.pieces[0].needs_masks and masks is not None and not masks.ready.is_set()
            is_enough = num_launched == _RUN_AHEAD and not is_polled
            if is_blocked or is_enough or num_ahead + job.num_ahead >= _RUN_AHEAD:
                break
            self.launcher.launch(job)
            num_launched += 1
            self._progress += self.launcher.collect(job)
        return job.num_ahead

    def _fail(self, job: Job, error: Exception) -> EngineError:
        failure = EngineError(f"step {job.plan.step_id} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self._failure, self._closed = failure, True
        return failure


def _describe(
    weights: PackedWeights, options: CudaOptions, max_model_len: int, num_pages: int, chunk_grain: int
) -> EngineInfo:
    spec, dtype = weights.spec, weights.embed.dtype
    return EngineInfo(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        page_size=options.page_size,
        num_pages=num_pages,
        max_slots=options.max_slots,
        max_step_tokens=options.max_step_tokens,
        depth=options.depth,
        device=options.device,
        description=f"cuda: {spec.family}, {str(dtype).removeprefix('torch.')}, torch {torch.__version__}",
        keeps_residual=True,
        step_sizes=tuple(t for t in PREFILL_TIERS if t <= options.max_step_tokens) if options.graphs else (),
        chunk_grain=chunk_grain,
    )
