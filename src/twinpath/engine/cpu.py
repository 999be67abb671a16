"""The CPU engine: the Engine contract over one `NativeModel`, depth 1. No torch.

Bitwise: a request's logits do not depend on what else is in its steps, on chunking, cache hits, pages or threads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from twinpath.engine.cpu_slices import CpuSlices
from twinpath.engine.plan_check import check_plan
from twinpath.engine.row_masks import RowMask, row_masks
from twinpath.engine.step_output import StepOutput, interrupted_result, paused_result
from twinpath.errors import EngineError
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights
from twinpath.native.cores import default_threads, usable_cores
from twinpath.native.library import load_library
from twinpath.native.model import Flags, LoadReport, NativeModel, NativeOptions, PausedAt
from twinpath.native.sampler import NativeSampler
from twinpath.sampling import GREEDY_BELOW
from twinpath.types import (
    PENDING_TOKEN,
    EngineInfo,
    Float32s,
    Int32s,
    SamplingParams,
    SlotInit,
    StepPlan,
    StepResult,
    TokenLogprob,
)

#: Pages for this many tokens, or for the window when that is more (touched lazily: unused pages cost nothing).
_DEFAULT_POOL_TOKENS = 16_384
#: KV memory that an idle engine keeps ready, and how much of it is asked for at once: less than a millisecond's worth.
_AHEAD_BYTES, _AT_ONCE_BYTES = 32 * 2**20, 2 * 2**20
#: Rows whose prompt log-probabilities are computed at once: bounds the [rows, vocab] block.
_LOGIT_ROWS = 32


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """What `CpuEngine` needs beside the model."""

    #: None: the physical cores this process may use.
    threads: int | None = None
    isa: str = "auto"
    activation_bits: Literal[8, 16] = 16
    page_size: int = 16
    num_pages: int | None = None
    #: None: the model's own window.
    max_model_len: int | None = None
    max_slots: int = 64
    max_step_tokens: int = 2048


def kv_page_bytes(spec: ModelSpec, page_size: int) -> int:
    """Bytes of one page over all layers: fp16 keys and values, head_dim padded to 16."""
    return 2 * 2 * spec.num_layers * spec.num_kv_heads * page_size * (-(-spec.head_dim // 16) * 16)


@dataclass(slots=True)
class _Slot:
    sampling: SamplingParams
    history: list[int]
    num_prompt: int


class CpuEngine:
    """Implements `contracts.Engine`: `submit` stores the plan, `poll` runs it on the caller's thread (GIL released)."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, options: CpuOptions, report: LoadReport | None = None
    ) -> None:
        max_model_len = options.max_model_len or spec.max_position
        num_pages = options.num_pages or -(-max(_DEFAULT_POOL_TOKENS, max_model_len) // options.page_size)
        threads = options.threads or default_threads()
        library = load_library()
        native = NativeOptions(
            threads=threads,
            isa=options.isa,
            activation_bits=options.activation_bits,
            page_size=options.page_size,
            num_pages=num_pages,
            max_rows=options.max_step_tokens,
            max_position=max_model_len,
        )
        self.model = NativeModel(library, spec, weights, native, report)
        self._sampler = NativeSampler(library.handle, spec.vocab_size, options.max_slots)
        self._info = EngineInfo(
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            page_size=options.page_size,
            num_pages=num_pages,
            max_slots=options.max_slots,
            max_step_tokens=options.max_step_tokens,
            depth=1,
            asks_for_masks=True,
            pauses=True,
            goes_on=threads > 1,
            description=f"native: {spec.family}, {self.model.isa}, {threads} threads, "
            f"{options.activation_bits}-bit activations",
        )
        pool_mb = num_pages * kv_page_bytes(spec, options.page_size) / 2**20
        #: Lines for the start-up table.
        self.facts = {
            "kernels": self.model.isa,
            "threads": str(threads),
            "activations": f"{options.activation_bits} bits",
            "KV memory": f"{pool_mb:,.0f} MB, touched as used",
        }
        self._fills_cores = threads >= usable_cores()
        page_bytes = kv_page_bytes(spec, options.page_size)
        self._pages_ahead, self._pages_at_once = _AHEAD_BYTES // page_bytes, -(-_AT_ONCE_BYTES // page_bytes)
        #: The pool hands out low pages first: those below were used, and those below have memory.
        self._num_used = self._num_backed = 0
        self._slots: dict[int, _Slot] = {}
        self._slices = CpuSlices(self.model)
        #: No other request than the one that the plan which ends serves.
        self._is_alone = True
        self._plan: StepPlan | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def submit(self, plan: StepPlan) -> int:
        check_plan(plan, self._info)
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            if self._plan is not None:
                raise ValueError("a plan is outstanding, the engine's depth is 1")
            self._plan = plan
            self.model.cancel(False)
        return plan.step_id

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        """Runs the outstanding plan; the timeout does not cut it short (`interrupt` does)."""
        plan = self._plan
        if plan is None:
            return None
        started_s = time.perf_counter()
        try:
            output = self._run(plan)
        finally:
            with self._lock:
                self._plan = None
        elapsed_ms = (time.perf_counter() - started_s) * 1000.0
        if isinstance(output, PausedAt):
            return paused_result(plan, output.layer, elapsed_ms)
        return interrupted_result(plan, elapsed_ms) if output is None else output.result(plan, elapsed_ms)

    def interrupt(self, step_id: int) -> None:
        with self._lock:
            if self._plan is not None and self._plan.step_id == step_id:
                self.model.cancel()

    def progress(self) -> int:
        return self.model.progress()

    def prepare(self) -> bool:
        """Memory for pages that will be used next: their first rows would wait for a page fault every 4 KB."""
        begin = max(self._num_backed, self._num_used)
        wanted = min(self._num_used + self._pages_ahead, self._info.num_pages)
        if begin >= wanted:
            return False
        self._num_backed = min(begin + self._pages_at_once, wanted)
        self.model.back_pages(begin, self._num_backed)
        return self._num_backed < wanted

    def set_threads(self, threads: int) -> None:
        """Between steps."""
        self.model.set_threads(threads)

    def close(self) -> None:
        """Not while `poll` runs; an outstanding plan is lost."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._plan = True, None
        self._sampler.close()
        self._slices.close()
        self.model.close()

    def _run(self, plan: StepPlan) -> StepOutput | PausedAt | None:
        """None: interrupted, and nothing of the plan counts."""
        output = StepOutput()
        for init in plan.inits:
            self._bind(init)
        starts, lengths, sample, tables = plan.starts, plan.lengths, plan.sample, plan.block_tables
        tokens, keep = self._resolve(plan, output)
        whole = not output.failures
        if not whole:
            kept = [i for i in range(len(plan.slots)) if i not in output.failures]
            rows = np.repeat([i not in output.failures for i in range(len(plan.slots))], lengths)
            starts, lengths, sample, tables = starts[kept], lengths[kept], sample[kept], tables[kept]
            tokens, keep = tokens[rows], [keep[i] for i in kept]
        else:
            kept = list(range(len(plan.slots)))
        residual = plan.residual if whole or plan.residual is None else np.ascontiguousarray(plan.residual[rows])
        keep_hidden = np.array(keep, np.uint8) if any(keep) else None
        computed: tuple[Float32s, Float32s] | PausedAt | None
        if plan.budget_ms is not None and residual is not None and whole:
            computed = self._run_slice(plan, residual, plan.budget_ms, tokens, keep_hidden)
        else:  # Whoever fails leaves a paused plan to begin again, in one go.
            computed = self.model.step(
                starts, lengths, sample.view(np.uint8), tokens, tables,
                layers=(plan.layer_begin, plan.layer_end), residual=residual, keep_hidden=keep_hidden,
                beside=None if plan.beside is None else self._slices.find(plan.beside),
            )  # fmt: skip
        if computed is None:
            return None
        if isinstance(computed, PausedAt):
            self._release(plan)
            return computed
        if not whole and plan.residual is not None and residual is not None:
            plan.residual[rows] = residual
        if plan.layer_end == self._info.num_layers:
            self._finish(plan, kept, keep, *computed, output)
        self._release(plan)
        return output

    def _release(self, plan: StepPlan) -> None:
        for slot in plan.releases:
            self._slots.pop(slot, None)

    def _run_slice(
        self, plan: StepPlan, residual: Float32s, budget_ms: float, tokens: Int32s, keep_hidden: Flags | None
    ) -> tuple[Float32s, Float32s] | PausedAt | None:
        piece = self._slices.take(residual, plan.resume)
        computed = self.model.step_slice(
            piece, budget_ms, plan.starts, plan.lengths, plan.sample.view(np.uint8), tokens, plan.block_tables,
            resume=plan.resume, keep_hidden=keep_hidden,
        )  # fmt: skip
        if isinstance(computed, PausedAt):
            self._slices.keep(residual, piece)
        else:
            self._slices.give_back(piece)
        return computed

    def _bind(self, init: SlotInit) -> None:
        self._sampler.reset(init.slot, init.sampling, init.history, init.num_prompt)
        self._slots[init.slot] = _Slot(init.sampling, init.history.tolist(), init.num_prompt)

    def _resolve(self, plan: StepPlan, output: StepOutput) -> tuple[Int32s, list[bool]]:
        """Tokens with PENDING ones filled in, and which segments want prompt log-probabilities; bad segments fail."""
        tokens = plan.tokens
        # One look at all of them; their segments are looked at one by one when something is amiss.
        are_known = tokens.min() >= 0 and tokens.max() < self._info.vocab_size
        if not are_known:
            tokens = tokens.copy()
        keep = [False] * len(plan.slots)
        row = 0
        for index, (slot_id, start, length) in enumerate(
            zip(plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True)
        ):
            slot = self._slots.get(slot_id)
            problem: str | None = "the slot holds no request"
            if slot is not None:
                problem = self._check_pages(plan.block_tables[index], start + length)
                if problem is None and not are_known:
                    problem = self._resolve_tokens(slot, tokens[row : row + length], start)
                keep[index] = slot.sampling.prompt_logprobs is not None and start + 1 < slot.num_prompt
            if problem is not None:
                output.failures[index] = problem
            row += length
        return tokens, keep

    def _check_pages(self, table: Int32s, num_tokens: int) -> str | None:
        """What is wrong with the pages of a segment that ends before position `num_tokens`."""
        num_pages = -(-num_tokens // self._info.page_size)
        if len(table) < num_pages or int(table[:num_pages].min()) < 0:
            return f"the block table has no page for position {num_tokens - 1}"
        self._num_used = max(self._num_used, int(table[num_pages - 1]) + 1)
        return None

    def _resolve_tokens(self, slot: _Slot, tokens: Int32s, start: int) -> str | None:
        """Fill in what is PENDING of a segment's tokens; what is wrong with the others."""
        for offset in np.flatnonzero(tokens == PENDING_TOKEN).tolist():
            if start + offset >= len(slot.history):
                return f"the token at position {start + offset} is not known"
            tokens[offset] = slot.history[start + offset]
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._info.vocab_size:
            return f"token id {low if low < 0 else high} is outside the vocabulary of {self._info.vocab_size}"
        return None

    def _finish(
        self,
        plan: StepPlan,
        kept: list[int],
        keep: list[bool],
        logits: Float32s,
        hidden: Float32s,
        output: StepOutput,
    ) -> None:
        """Prompt log-probabilities and one sampled token per segment that asks."""
        masks = row_masks(plan)
        self._is_alone = len(self._slots.keys() - set(plan.releases)) == 1
        logits_row = hidden_row = 0
        slots, starts, lengths, samples = (a.tolist() for a in (plan.slots, plan.starts, plan.lengths, plan.sample))
        for index, wants_prompt in zip(kept, keep, strict=True):
            slot_id, start, length = slots[index], starts[index], lengths[index]
            slot = self._slots[slot_id]
            hidden_begin, logits_begin = hidden_row, logits_row
            hidden_row += length if wants_prompt else 0
            logits_row += samples[index]
            try:
                if wants_prompt:
                    output.prompt_logprobs[index] = self._prompt_logprobs(slot, start, hidden[hidden_begin:hidden_row])
                if samples[index]:
                    mask = masks.get(index)
                    self._sample(slot_id, start + length, logits[logits_begin], mask, index, output)
            except EngineError as failure:
                output.failures[index] = str(failure)

    def _sample(
        self, slot_id: int, position: int, logits: Float32s, mask: RowMask | None, index: int, output: StepOutput
    ) -> None:
        slot = self._slots[slot_id]
        if len(slot.history) != position:
            raise EngineError(f"{len(slot.history)} tokens are known, position {position} cannot be sampled")
        token = self._draw(slot_id, position, logits, mask)
        self._sampler.append(slot_id, token)
        slot.history.append(token)
        output.tokens[index] = token
        if self._fills_cores and position == slot.num_prompt and self._is_alone:
            # Gateway and client wait for a core with the first token: a step on all of them would hold it for 4 ms.
            # Streams beside it would wait 4 ms longer for theirs.
            self.model.leave_core()
        if slot.sampling.logprobs is not None:
            output.logprobs[index] = [self._sampler.token_logprob(logits, token, slot.sampling.logprobs)]

    def _draw(self, slot_id: int, position: int, logits: Float32s, mask: RowMask | None) -> int:
        if mask is None:
            return self._sampler.sample(slot_id, logits, position, None)
        slot = self._slots[slot_id]
        is_greedy = slot.sampling.temperature < GREEDY_BELOW
        if is_greedy and position - slot.num_prompt >= slot.sampling.min_tokens:
            # The best of all tokens is the best of the legal ones when it is legal.
            token = self._sampler.sample(slot_id, logits, position, None)
            if mask.allows(token):
                return token
        return self._sampler.sample(slot_id, logits, position, mask.words())

    def _prompt_logprobs(self, slot: _Slot, start: int, hidden: Float32s) -> list[TokenLogprob]:
        """Entries for the rows whose next token is a prompt token."""
        num_top = slot.sampling.prompt_logprobs or 0
        known = slot.history[start + 1 : min(start + len(hidden) + 1, slot.num_prompt)]
        entries: list[TokenLogprob] = []
        for first in range(0, len(known), _LOGIT_ROWS):
            targets = known[first : first + _LOGIT_ROWS]
            block = self.model.logits(hidden[first : first + len(targets)])
            entries += [
                self._sampler.token_logprob(row, token, num_top) for row, token in zip(block, targets, strict=True)
            ]
        return entries
