"""The simulated engine: a contracts.Engine that moves a virtual clock instead of computing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from twinpath.plan.arrivals import Arrival
from twinpath.scheduler.cost import CostModel, StepShape, shape_of
from twinpath.types import EngineInfo, Int32s, StepPlan, StepResult

#: Steps whose times are worked out at once, at first.
_LEAST_AHEAD = 4
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
    """Answers as long as the trace says, in the time that `cost` says, times `noise()` per step.

    A request is known by its sampling seed, which is the index of its arrival. Plans run one after the other; `poll`
    takes the clock to the end of the oldest. A plan that may repeat does so until an answer ends or `until_s` is past:
    then the next step may be another one.
    """

    def __init__(
        self,
        info: EngineInfo,
        cost: CostModel,
        clock: VirtualClock,
        arrivals: Sequence[Arrival],
        noise: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.info = info
        #: Time in which a step ran, and how many did.
        self.busy_s = 0.0
        self.num_steps = 0
        #: When something will happen that the scheduler has to hear of.
        self.until_s = math.inf
        self._cost = cost
        self._clock = clock
        self._noise = noise
        self._arrivals = arrivals
        self._queue: deque[StepPlan] = deque()
        self._free_at_s = 0.0
        self._bound: list[Arrival] = list(arrivals[:1]) * info.max_slots
        #: Position of the last token of the request in each slot.
        self._last = np.zeros(info.max_slots, np.int64)
        #: Of the stream of each slot: see TokenStream.
        self._filler = np.zeros(info.max_slots, np.int32)
        self._covered = np.zeros(info.max_slots, np.int64)
        #: Noise of the steps to come, as far as it was drawn: looking ahead must not change what comes.
        self._noises: list[float] = []
        #: Milliseconds of the next steps if the first has this shape.
        self._times: list[float] = []
        self._ahead_of: StepShape | None = None
        #: Shape of the next step if it has the rows that sampled in the last one; steps until the first of them ends.
        self._next: tuple[StepShape, int] | None = None

    def submit(self, plan: StepPlan) -> int:
        assert len(self._queue) < self.info.depth
        if not self._queue:
            self._free_at_s = self._clock.now_s
        self._queue.append(plan)
        return plan.step_id

    def horizon(self) -> int:
        """How often the next plan can run before an answer ends or `until_s` is past, if it decodes the same rows."""
        if self._next is None or self._queue:
            return 1
        shape, most = self._next
        return self._fit(shape, most, self._clock.now_s)[0]

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        if not self._queue:
            return None
        plan = self._queue.popleft()
        for init in plan.inits:
            arrival = self._bound[init.slot] = self._arrivals[init.sampling.seed]
            self._last[init.slot] = arrival.num_prompt + arrival.num_output - 1
            self._filler[init.slot] = arrival.stream.filler
            self._covered[init.slot] = arrival.stream.num_covered
        shape = shape_of(plan, self.info.num_layers)
        begin_s = self._free_at_s
        repeats, self._free_at_s = self._fit(shape, min(plan.repeat, self._steps_left(plan)), begin_s)
        del self._noises[:repeats]
        self._ahead_of = None
        elapsed_s = self._free_at_s - begin_s
        self.busy_s += elapsed_s
        self.num_steps += repeats
        self._clock.advance_to(self._free_at_s)
        counts, tokens = self._sample(plan, repeats)
        self._look_ahead(plan, repeats)
        # Decode steps are not reported, alone or repeated: what the scheduler learns must not depend on the repeats.
        is_decode = not shape.num_prefill and bool(plan.sample.all())
        return StepResult(plan.step_id, counts, tokens, elapsed_ms=0.0 if is_decode else elapsed_s * 1e3)

    def interrupt(self, step_id: int) -> None:
        """Simulated clients do not cancel."""

    def prepare(self) -> bool:
        return False

    def progress(self) -> int:
        return 0

    def close(self) -> None: ...

    def _fit(self, shape: StepShape, most: int, time_s: float) -> tuple[int, float]:
        """Steps from `time_s` on until `until_s` is past, at least 1 and at most `most`; and when the last ends."""
        if shape != self._ahead_of:
            self._ahead_of = shape
            self._times.clear()
        times, until_s, count = self._times, self.until_s, 0
        while True:
            if count == len(times):
                self._add_times(shape, min(most, max(2 * count, _LEAST_AHEAD)))
            time_s += times[count] / 1e3
            count += 1
            if count >= most or time_s >= until_s:
                return count, time_s

    def _add_times(self, shape: StepShape, num_steps: int) -> None:
        """As many steps ahead; each decode row then attends to one more token."""
        times, noises, noise = self._times, self._noises, self._noise
        noises += [noise() for _ in range(num_steps - len(noises))]
        if not times:
            times.append(self._cost.predict(shape) * noises[0])
        later = self._cost.predict_later
        times += [later(shape, count) * noises[count] for count in range(len(times), num_steps)]

    def _steps_left(self, plan: StepPlan) -> int:
        """Until the first answer of a decode plan ends; 1 for any other plan."""
        if plan.repeat == 1:
            return 1
        return int((self._last[plan.slots] - plan.starts).min())

    def _look_ahead(self, plan: StepPlan, repeats: int) -> None:
        """Remember the rows that sampled and did not end."""
        self._next = None
        if plan.layer_end < self.info.num_layers or not plan.sample.all():
            return
        positions = plan.starts + plan.lengths
        positions += repeats - 1
        steps_left = self._last[plan.slots] - positions
        lives = steps_left > 0
        if not lives.all():
            positions, steps_left = positions[lives], steps_left[lives]
        num_live = len(positions)
        if num_live:
            context = int(positions.sum()) + num_live
            self._next = StepShape(num_live, context, num_sampled=num_live), int(steps_left.min())

    def _sample(self, plan: StepPlan, repeats: int) -> tuple[Int32s, Int32s]:
        if plan.layer_end < self.info.num_layers:
            return np.zeros(len(plan.slots), np.int32), np.zeros(0, np.int32)
        counts, slots, positions = plan.sample.astype(np.int32), plan.slots, plan.starts + plan.lengths
        if not plan.sample.all():
            slots, positions = slots[plan.sample], positions[plan.sample]
        tokens = np.repeat(self._filler[slots], repeats).reshape(len(slots), repeats)
        covered = positions < self._covered[slots]
        if covered.any():
            for row in np.flatnonzero(covered).tolist():
                position = int(positions[row])
                tokens[row] = self._bound[slots[row]].stream.tokens(position, position + repeats)
        tokens[positions + repeats > self._last[slots], -1] = END_ID
        if repeats > 1:
            counts *= repeats
        return counts, tokens.reshape(-1)
