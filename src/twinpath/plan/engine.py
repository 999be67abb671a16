"""The simulated engine: moves a virtual clock instead of computing."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from twinpath.plan.arrivals import Arrival
from twinpath.scheduler.cost import CostModel, StepShape
from twinpath.scheduler.step import Step
from twinpath.types import EngineInfo, Int32s, StepResult

#: Steps whose times are worked out beyond those that a look ahead should need: noise may make them shorter.
_MARGIN = 4
#: Ends every answer. Above all block and filler ids.
END_ID = (1 << 31) - 1


class VirtualClock:
    """Monotonic seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance_to(self, time_s: float) -> None:
        self.now_s = max(self.now_s, time_s)


class SimulatedEngine:
    """Answers as long as the trace says, in the time that `cost` says, times its noise: `noises()` gives that of
    the next steps, any number.

    It takes the scheduler's own steps: the arrays of a plan are for those who compute. A request is known by its
    sampling seed, which is the index of its arrival. Steps run one after the other; `poll` takes the clock to the end
    of the oldest. A step that may repeat does so until `until_s` is past: then the next may be another one. It may not
    repeat more often than `horizon` said.
    """

    def __init__(
        self,
        info: EngineInfo,
        cost: CostModel,
        clock: VirtualClock,
        arrivals: Sequence[Arrival],
        noises: Callable[[], list[float]] = lambda: [1.0] * 256,
    ) -> None:
        self.info = info
        #: Time in which a step ran, and how many did.
        self.busy_s = 0.0
        self.num_steps = 0
        #: When something will happen that the scheduler has to hear of.
        self.until_s = math.inf
        self._cost = cost
        self._clock = clock
        self._draw = noises
        self._arrivals = arrivals
        self._queue: deque[Step] = deque()
        self._free_at_s = 0.0
        self._bound: list[Arrival] = list(arrivals[:1]) * info.max_slots
        #: Position of the last token of the request in each slot.
        self._last = [0] * info.max_slots
        #: Of the stream of each slot: see TokenStream.
        self._filler = [0] * info.max_slots
        self._covered = [0] * info.max_slots
        #: Noise of the steps to come, as far as it was drawn: looking ahead must not change what comes.
        self._noises: list[float] = []
        #: When the next steps end if the first has this shape and begins now, and how many of them may run.
        self._ends: list[float] = []
        self._ahead_of: StepShape | None = None
        #: Shape of the next step if it has the rows that sampled in the last one; steps until the first of them ends.
        self._next: tuple[StepShape, int] | None = None

    def submit(self, step: Step) -> None:
        assert len(self._queue) < self.info.depth
        if not self._queue:
            self._free_at_s = self._clock.now_s
        self._queue.append(step)

    def horizon(self) -> int:
        """How often the next step can run before an answer ends or `until_s` is past, if it decodes the same rows."""
        if self._next is None or self._queue:
            return 1
        shape, most = self._next
        return self._fit(shape, most, self._clock.now_s)

    def poll(self) -> StepResult | None:
        if not self._queue:
            return None
        step = self._queue.popleft()
        for sequence in step.fresh:
            slot = sequence.slot
            arrival = self._bound[slot] = self._arrivals[sequence.sampling.seed]
            self._last[slot] = arrival.num_prompt + arrival.num_output - 1
            self._filler[slot] = arrival.stream.filler
            self._covered[slot] = arrival.stream.num_covered
        begin_s = self._free_at_s
        repeats = self._fit(step.shape, step.repeat, begin_s)
        self._free_at_s = self._ends[repeats - 1]
        del self._noises[:repeats]
        self._ahead_of = None
        elapsed_s = self._free_at_s - begin_s
        self.busy_s += elapsed_s
        self.num_steps += repeats
        self._clock.advance_to(self._free_at_s)
        counts, tokens = self._sample(step, repeats)
        # Decode steps are not reported, alone or repeated: what the scheduler learns must not depend on the repeats.
        is_decode = not step.shape.num_prefill and 0 not in counts
        return StepResult(
            step.step_id,
            np.array(counts, np.int32),
            np.array(tokens, np.int32).reshape(-1),
            elapsed_ms=0.0 if is_decode else elapsed_s * 1e3,
        )

    def _fit(self, shape: StepShape, most: int, time_s: float) -> int:
        """Steps from `time_s` on until `until_s` is past, at least 1 and at most `most`; `_ends` then has them."""
        if shape != self._ahead_of:
            self._ahead_of = shape
            self._ends.clear()
        ends, until_s = self._ends, self.until_s
        while len(ends) < most and (not ends or ends[-1] < until_s):
            self._add_ends(shape, most, time_s)
        return min(bisect_left(ends, until_s) + 1, most)

    def _add_ends(self, shape: StepShape, most: int, time_s: float) -> None:
        """Of as many steps as should be needed; each decode row then attends to one more token."""
        ends, noises = self._ends, self._noises
        first = len(ends)
        if not first:
            if not noises:
                noises += self._draw()
            ends.append(time_s + self._cost.predict(shape) * noises[0] / 1e3)
            first = 1
        if first == most:
            return
        left_s, step_s = self.until_s - ends[-1], (ends[0] - time_s) / noises[0]
        end = most if left_s > (most - first) * step_s else min(first + int(left_s / step_s) + _MARGIN, most)
        while len(noises) < end:
            noises += self._draw()
        if end > first:
            times = map(mul, self._cost.predict_run(shape, range(first, end)), noises[first:end])
            ends[-1:] = accumulate([time_ms / 1e3 for time_ms in times], initial=ends[-1])

    def _sample(self, step: Step, repeats: int) -> tuple[list[int], list[int] | Int32s]:
        """Tokens of each segment, and all of them. Remembers the rows that sampled and did not end."""
        self._next = None
        if step.layer_end < self.info.num_layers:
            return [0] * len(step.rows), []
        last, filler, covered = self._last, self._filler, self._covered
        counts: list[int] = []
        tokens: list[int] = []
        #: Index among those that sample, slot and position of the first token of rows that end, and that blocks cover.
        ended: list[int] = []
        named: list[tuple[int, int, int]] = []
        num_live = context = 0
        steps_left = 1 << 62
        for row in step.rows:
            if not row.sample:
                counts.append(0)
                continue
            counts.append(repeats)
            slot, end = row.sequence.slot, row.start + row.length
            if end < covered[slot]:
                named.append((len(tokens), slot, end))
            left = last[slot] - end - repeats + 1
            if left > 0:
                num_live += 1
                context += end
                if left < steps_left:
                    steps_left = left
            else:
                ended.append(len(tokens))
            tokens.append(filler[slot])
        if num_live and len(tokens) == len(counts):
            self._next = StepShape(num_live, context + num_live * repeats, num_sampled=num_live), steps_left
        return counts, self._spell(tokens, ended, named, repeats)

    def _spell(
        self, fillers: list[int], ended: list[int], named: list[tuple[int, int, int]], repeats: int
    ) -> list[int] | Int32s:
        """What rows say, `repeats` tokens each: their filler, or what blocks say; at last END_ID of those that end."""
        if repeats == 1 and not named:
            for index in ended:
                fillers[index] = END_ID
            return fillers
        tokens = np.repeat(np.array(fillers, np.int32), repeats).reshape(-1, repeats)
        for index, slot, position in named:
            tokens[index] = self._bound[slot].stream.tokens(position, position + repeats)
        tokens[ended, -1] = END_ID
        return tokens
