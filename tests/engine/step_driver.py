"""Drives any engine through its contract: sequences with scattered pages, plans from segments, results in order."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from twinpath.contracts import Engine
from twinpath.types import PENDING_TOKEN, Float32s, Int32s, SamplingParams, SlotInit, StepPlan, StepResult

#: Far beyond any step here: waiting this long means that the engine hangs.
RESULT_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Sequence:
    """One request as a caller sees it: the tokens known so far, the pages it owns, how far it is computed."""

    slot: int
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    #: Decode steps submitted whose token is not known yet.
    num_pending: int = 0

    def init(self) -> SlotInit:
        return SlotInit(self.slot, self.sampling, np.array(self.tokens, dtype=np.int32), self.num_prompt)

    @property
    def outputs(self) -> list[int]:
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a plan."""

    sequence: Sequence
    start: int
    tokens: Items[int]
    sample: bool


class Driver:
    """Owns the engine's pages, handed out in random order, and numbers its steps."""

    def __init__(self, engine: Engine, **sampling: object) -> None:
        """`sampling`: what every sequence's parameters start from."""
        self.engine = engine
        self.sampling = {"max_tokens": 64, "temperature": 0.0, **sampling}
        self.free_pages: list[int] = np.random.default_rng(0).permutation(engine.info.num_pages).tolist()
        self.num_steps = 0

    def sequence(self, slot: int, prompt: Items[int], **sampling: object) -> Sequence:
        params = SamplingParams(**{**self.sampling, **sampling})  # type: ignore[arg-type]
        return Sequence(slot, list(prompt), len(prompt), params)

    def chunk(self, sequence: Sequence, num_tokens: int | None = None) -> Segment:
        """The next rows of `sequence` whose tokens are known; samples when they reach its last token."""
        start = sequence.num_computed
        end = len(sequence.tokens) if num_tokens is None else min(len(sequence.tokens), start + num_tokens)
        sequence.num_computed = end
        return Segment(sequence, start, sequence.tokens[start:end], end == len(sequence.tokens))

    def pending(self, sequence: Sequence) -> Segment:
        """A decode row that names the token sampled by the step before, which may still be outstanding."""
        start = sequence.num_computed
        sequence.num_computed += 1
        return Segment(sequence, start, [PENDING_TOKEN], True)

    def plan(
        self,
        segments: Items[Segment],
        inits: Items[Sequence] = (),
        releases: Items[Sequence] = (),
        layers: tuple[int, int] | None = None,
        residual: Float32s | None = None,
        budget_ms: float | None = None,
        resume: bool = False,
    ) -> StepPlan:
        page_size = self.engine.info.page_size
        tables = []
        for segment in segments:
            pages = segment.sequence.pages
            while len(pages) * page_size < segment.start + len(segment.tokens):
                pages.append(self.free_pages.pop())
            tables.append(pages)
        self.num_steps += 1
        begin, end = layers or (0, self.engine.info.num_layers)
        return StepPlan(
            step_id=self.num_steps,
            slots=_int32([s.sequence.slot for s in segments]),
            starts=_int32([s.start for s in segments]),
            lengths=_int32([len(s.tokens) for s in segments]),
            sample=np.array([s.sample for s in segments]),
            tokens=_int32([token for s in segments for token in s.tokens]),
            block_tables=_int32([table + [-1] * (max(map(len, tables)) - len(table)) for table in tables]),
            layer_begin=begin,
            layer_end=end,
            residual=residual,
            budget_ms=budget_ms,
            resume=resume,
            inits=tuple(sequence.init() for sequence in inits),
            releases=tuple(sequence.slot for sequence in releases),
        )

    def result(self) -> StepResult:
        result = self.engine.poll(RESULT_TIMEOUT_S)
        assert result is not None, "no result: the engine hangs"
        return result

    def run(self, segments: Items[Segment], **parts: object) -> StepResult:
        """One plan, alone; appends what it sampled to the sequences."""
        plan = self.plan(segments, **parts)  # type: ignore[arg-type]
        self.engine.submit(plan)
        result = self.result()
        assert result.step_id == plan.step_id
        for segment, tokens in zip(segments, tokens_of(result), strict=True):
            segment.sequence.tokens.extend(tokens)
        return result

    def generate(self, sequence: Sequence, num_tokens: int, chunk_tokens: int | None = None) -> list[int]:
        """Prefill `sequence` and decode it alone, each token known before the next step; returns the outputs."""
        inits: list[Sequence] = [sequence]
        while len(sequence.outputs) < num_tokens:
            self.run([self.chunk(sequence, chunk_tokens)], inits=inits)
            inits = []
        return sequence.outputs

    def free(self, sequence: Sequence) -> None:
        """Give the pages back, as preemption and the end of a request do."""
        self.free_pages[:0] = sequence.pages
        sequence.pages = []
        sequence.num_computed = 0


def tokens_of(result: StepResult) -> list[list[int]]:
    """Sampled tokens by segment."""
    return [part.tolist() for part in np.split(result.tokens, np.cumsum(result.counts)[:-1])]


def _int32(values: Items[object]) -> Int32s:
    return np.array(values, dtype=np.int32)
