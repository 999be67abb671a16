"""One plan through the reference model: resolve tokens and pages, run the layers, sample, isolate what fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinpath.engine.reference_model import PagedCache, ReferenceModel
from twinpath.engine.step_output import StepOutput
from twinpath.errors import EngineError
from twinpath.sampling.reference import sample, token_logprob
from twinpath.types import (
    PENDING_TOKEN,
    EngineInfo,
    Float32s,
    Int32s,
    SamplingParams,
    StepPlan,
    StepResult,
    TokenLogprob,
)

#: Rows whose prompt log-probabilities are computed at once: bounds the [rows, vocab] block on its way to numpy.
_LOGIT_ROWS = 64


@dataclass(slots=True)
class _Slot:
    """A request bound to the engine: its parameters and the tokens known so far."""

    sampling: SamplingParams
    history: Int32s
    num_prompt: int
    #: Why an earlier step of this request failed; steps queued behind that one fail alike.
    failure: str | None = None

    def append(self, token: int) -> None:
        self.history = np.append(self.history, np.int32(token))


@dataclass(frozen=True, slots=True)
class _Segment:
    """A plan's segment `index`, its rows in the plan's arrays and what it needs to run."""

    index: int
    slot: _Slot
    start: int
    length: int
    rows: Int32s
    tokens: Int32s
    table: Int32s


class StepRunner:
    """Runs plans one after another over one model and one paged cache; holds the slots' state."""

    def __init__(self, model: ReferenceModel, cache: PagedCache, info: EngineInfo) -> None:
        self._model = model
        self._cache = cache
        self._info = info
        self._slots: dict[int, _Slot] = {}

    @torch.inference_mode()
    def run(self, plan: StepPlan, before_layer: Callable[[], None]) -> StepResult:
        """Run `plan`, a well-formed one; `before_layer` may raise to leave it: then nothing of it counts."""
        for init in plan.inits:
            self._slots[init.slot] = _Slot(init.sampling, np.array(init.history, dtype=np.int32), init.num_prompt)
        output = StepOutput()
        segments = self._resolve(plan, output)
        if segments:
            x = self._layers(plan, segments, before_layer)
            if plan.layer_end == self._info.num_layers:
                self._finish(plan, segments, x, output)
        for index, reason in output.failures.items():
            if slot := self._slots.get(int(plan.slots[index])):
                slot.failure = reason
        for slot_id in plan.releases:
            self._slots.pop(slot_id, None)
        return output.result(plan)

    def _resolve(self, plan: StepPlan, output: StepOutput) -> list[_Segment]:
        """The segments that can run, their tokens known; the others become failures."""
        segments: list[_Segment] = []
        ends = np.cumsum(plan.lengths)
        for index, end in enumerate(ends.tolist()):
            length = int(plan.lengths[index])
            rows = np.arange(end - length, end, dtype=np.int32)
            try:
                segments.append(self._segment(plan, index, rows))
            except EngineError as failure:
                output.failures[index] = str(failure)
        return segments

    def _segment(self, plan: StepPlan, index: int, rows: Int32s) -> _Segment:
        slot_id, start, length = int(plan.slots[index]), int(plan.starts[index]), len(rows)
        slot = self._slots.get(slot_id)
        if slot is None:
            raise EngineError(f"slot {slot_id} holds no request")
        if slot.failure is not None:
            raise EngineError(slot.failure)
        table = plan.block_tables[index]
        num_pages = -(-(start + length) // self._info.page_size)
        if len(table) < num_pages or int(table[:num_pages].min()) < 0:
            raise EngineError(f"the block table has no page for position {start + length - 1}")
        tokens = plan.tokens[rows]
        pending = tokens == PENDING_TOKEN
        if pending.any():
            positions = start + np.flatnonzero(pending)
            if positions[-1] >= len(slot.history):
                raise EngineError(f"the token at position {positions[-1]} is not known")
            tokens[pending] = slot.history[positions]
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._info.vocab_size:
            wrong = tokens[(tokens < 0) | (tokens >= self._info.vocab_size)][0]
            raise EngineError(f"token id {wrong} is outside the vocabulary of {self._info.vocab_size}")
        return _Segment(index, slot, start, length, rows, tokens, table)

    def _layers(self, plan: StepPlan, segments: list[_Segment], before_layer: Callable[[], None]) -> Tensor:
        """Residual after the plan's layers, float32 [rows of `segments`, hidden]; also written to `plan.residual`."""
        model = self._model
        rows = np.concatenate([s.rows for s in segments])
        batch = model.batch(
            [s.start for s in segments], [s.length for s in segments], [s.table for s in segments], self._info.page_size
        )
        if plan.layer_begin == 0:
            tokens = np.concatenate([s.tokens for s in segments]).astype(np.int64)
            x = model.embed(torch.from_numpy(tokens).to(model.device))
        else:
            assert plan.residual is not None
            x = torch.from_numpy(plan.residual[rows]).to(model.device)
        for layer in range(plan.layer_begin, plan.layer_end):
            before_layer()
            x = model.layer(layer, x, batch, self._cache)
        before_layer()
        if plan.layer_end < self._info.num_layers:
            assert plan.residual is not None
            plan.residual[rows] = x.cpu().numpy()
        return x

    def _finish(self, plan: StepPlan, segments: list[_Segment], x: Tensor, output: StepOutput) -> None:
        """Prompt log-probabilities and one sampled token per segment that asks."""
        ends = np.cumsum([s.length for s in segments])
        masks = plan.masks.wait() if plan.masks is not None else {}
        last_logits = self._model.logits(x[torch.from_numpy(ends - 1).to(x.device)]).cpu().numpy()
        for segment, end, logits in zip(segments, ends.tolist(), last_logits, strict=True):
            try:
                if segment.slot.sampling.prompt_logprobs is not None:
                    entries = self._prompt_logprobs(segment, x[end - segment.length : end])
                    if entries:
                        output.prompt_logprobs[segment.index] = entries
                if plan.sample[segment.index]:
                    self._sample(segment, logits, masks.get(segment.index), output)
            except EngineError as failure:
                output.failures[segment.index] = str(failure)

    def _sample(self, segment: _Segment, logits: Float32s, mask: Int32s | None, output: StepOutput) -> None:
        slot, position = segment.slot, segment.start + segment.length
        if len(slot.history) != position:
            raise EngineError(f"{len(slot.history)} tokens are known, position {position} cannot be sampled")
        token, logprob = sample(logits, slot.sampling, slot.history, slot.num_prompt, position, mask)
        slot.append(token)
        output.tokens[segment.index] = token
        if logprob is not None:
            output.logprobs[segment.index] = [logprob]

    def _prompt_logprobs(self, segment: _Segment, x: Tensor) -> list[TokenLogprob]:
        """Entries for the rows whose next token is a prompt token."""
        slot = segment.slot
        num_top = slot.sampling.prompt_logprobs or 0
        known = slot.history[segment.start + 1 : min(segment.start + segment.length + 1, slot.num_prompt)].tolist()
        entries: list[TokenLogprob] = []
        for first in range(0, len(known), _LOGIT_ROWS):
            targets = known[first : first + _LOGIT_ROWS]
            block = self._model.logits(x[first : first + len(targets)]).cpu().numpy()
            entries += [token_logprob(row, token, num_top) for row, token in zip(block, targets, strict=True)]
        return entries
