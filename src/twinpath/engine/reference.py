"""The oracle: the Engine contract in plain torch, on CPU or CUDA. Right first; every faster engine is compared with it.

A worker thread runs the plans in order, so up to `depth` may be queued; sampled tokens feed back inside the engine.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from functools import partial

import torch

from twinpath.engine.plan_check import check_plan
from twinpath.engine.reference_memory import ReferenceOptions, default_num_pages, describe_memory
from twinpath.engine.reference_model import PagedCache, ReferenceModel
from twinpath.engine.reference_step import StepRunner
from twinpath.engine.step_output import interrupted_result
from twinpath.errors import EngineError
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.types import EngineInfo, StepPlan, StepResult


class _Interrupted(Exception):
    """Leaves a step between two layers."""


class ReferenceEngine:
    """Implements `contracts.Engine`.

    Interrupting plan n also interrupts every plan submitted before n's result was polled: those may stand on its keys
    or its token. An interrupted plan is planned again with its inits; its releases have not happened.
    """

    def __init__(self, spec: ModelSpec, weights: Weights, options: ReferenceOptions) -> None:
        device, dtype = torch.device(options.device), getattr(torch, options.dtype)
        model = ReferenceModel(spec, weights, device, dtype)
        max_model_len = options.max_model_len or spec.max_position
        num_pages = options.num_pages or default_num_pages(spec, options, max_model_len)
        cache = PagedCache(spec, num_pages, options.page_size, device, dtype)
        self._info = EngineInfo(
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
            description=f"reference: {spec.family}, {options.dtype} on {options.device}, torch {torch.__version__}",
        )
        #: Lines for the start-up table.
        self.facts = describe_memory(spec, options, num_pages)
        self._runner = StepRunner(model, cache, self._info)
        self._plans: queue.SimpleQueue[tuple[StepPlan, int] | None] = queue.SimpleQueue()
        #: A result and whether it answers an `interrupt` (and not one before it in the queue); or why the engine broke.
        self._results: queue.SimpleQueue[tuple[StepResult, bool] | EngineError] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._outstanding: dict[int, bool] = {}  # step id -> asked to stop
        self._num_stopped = 0  # steps the worker left because they were asked to stop
        self._num_stopped_seen = 0  # how many of these results the caller has polled
        self._progress = 0
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="reference-engine", daemon=True)
        self._worker.start()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, plan: StepPlan) -> int:
        check_plan(plan, self._info)
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if len(self._outstanding) >= self._info.depth:
                raise ValueError(
                    f"{len(self._outstanding)} plans are outstanding, the engine's depth is {self._info.depth}"
                )
            if plan.step_id in self._outstanding:
                raise ValueError(f"step {plan.step_id} is already outstanding")
            self._outstanding[plan.step_id] = False
        self._plans.put((plan, self._num_stopped_seen))
        return plan.step_id

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        """As the contract says.

        Raises:
            EngineError: the step failed as a whole (device or code), so this engine cannot be used any more.
        """
        if not self._outstanding:
            return None
        try:
            item = self._results.get(block=timeout_s != 0, timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, EngineError):
            self._results.put(item)  # for every later call too
            raise item
        result, was_stopped = item
        self._num_stopped_seen += was_stopped
        with self._lock:
            del self._outstanding[result.step_id]
        return result

    def interrupt(self, step_id: int) -> None:
        with self._lock:
            if step_id in self._outstanding:
                self._outstanding[step_id] = True

    def prepare(self) -> bool:
        return False

    def progress(self) -> int:
        return self._progress

    def close(self) -> None:
        """Stop at the next layer; results not polled yet are lost."""
        with self._lock:
            self._closed = True
            self._outstanding = dict.fromkeys(self._outstanding, True)
        self._plans.put(None)
        self._worker.join()

    def _work(self) -> None:
        """The worker thread: plans in, results out, in order."""
        while (item := self._plans.get()) is not None:
            plan, num_stopped_seen = item
            started_s = time.perf_counter()
            was_stopped = False
            try:
                if num_stopped_seen < self._num_stopped:
                    result = interrupted_result(plan)
                else:
                    result = self._runner.run(plan, partial(self._before_layer, plan.step_id))
            except _Interrupted:
                self._num_stopped += 1
                result, was_stopped = interrupted_result(plan), True
            except Exception as error:  # the caller waits for a result: it must learn that there will be none
                failure = EngineError(f"step {plan.step_id} failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._closed = True
                self._results.put(failure)
                return
            elapsed_ms = (time.perf_counter() - started_s) * 1000.0
            self._results.put((replace(result, elapsed_ms=elapsed_ms), was_stopped))

    def _before_layer(self, step_id: int) -> None:
        self._progress += 1
        if self._outstanding.get(step_id, False):
            raise _Interrupted
