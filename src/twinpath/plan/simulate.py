"""The simulation: the server's scheduler, a simulated engine, arrivals, and a clock that jumps."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from twinpath.errors import EngineError
from twinpath.plan.arrivals import Arrival, Workload
from twinpath.plan.engine import END_ID, SimulatedEngine, VirtualClock
from twinpath.plan.machine import Machine
from twinpath.plan.tokens import Prompt
from twinpath.scheduler import LaneSettings, Scheduler, SchedulerLimits, make_policy
from twinpath.scheduler.cost import CostModel
from twinpath.types import AdmittedEvent, ErrorEvent, Event, FinishEvent, Request, SamplingParams, TokensEvent

#: What clients ask for: the scheduler must not learn from it how long an answer will be.
_MAX_TOKENS = 4096
#: Factors of noise that are drawn at once.
_NUM_NOISES = 1024


@dataclass(slots=True)
class Outcome:
    """What a request got. Times are NaN when they never came."""

    arrival: Arrival
    arrived_s: float
    first_s: float = math.nan
    last_s: float = math.nan
    num_tokens: int = 0
    cached_tokens: int = 0
    predicted_ttft_ms: float = math.nan
    #: "" when it finished.
    error: str = ""

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.arrived_s) * 1e3

    @property
    def tpot_ms(self) -> float:
        """(last token - first token) / (tokens - 1); 0 for a single token."""
        return (self.last_s - self.first_s) * 1e3 / (self.num_tokens - 1) if self.num_tokens > 1 else 0.0

    @property
    def met(self) -> bool:
        slo = self.arrival.slo
        return not self.error and self.ttft_ms <= slo.ttft_ms and self.tpot_ms <= slo.tpot_ms


@dataclass(frozen=True, slots=True)
class Options:
    """How a server runs, beside its machine.

    noise: standard deviation of the logarithm of step times (0: every step takes what the cost model says).
    step_by_step: plan every step, also those that cannot differ from the one before. For tests.
    """

    policy: str = "twinpath"
    lanes: LaneSettings | None = None
    noise: float = 0.0
    seed: int = 0
    step_by_step: bool = False


class Simulation:
    """One run. `outcomes` are in order of arrival once `run` is through."""

    def __init__(self, workload: Workload, machine: Machine, options: Options | None = None) -> None:
        self.workload = workload
        self.machine = machine
        self.options = options or Options()
        self.clock = VirtualClock()
        self.outcomes: list[Outcome] = []
        noises = _noises(self.options.noise, self.options.seed)
        self.engine = SimulatedEngine(machine.info, CostModel(machine.cost), self.clock, workload.arrivals, noises)
        limits = SchedulerLimits(machine.max_num_seqs, machine.max_num_batched_tokens, lanes=self.options.lanes)
        self.scheduler = Scheduler(
            machine.info,
            limits,
            make_policy(self.options.policy),
            clock=self.clock,
            cost=CostModel(machine.cost),
        )
        #: (time, index) of arrivals whose time is known.
        self._due = [(arrival.at_s, arrival.index) for arrival in workload.arrivals if arrival.after < 0]
        heapq.heapify(self._due)
        self._live: dict[str, Outcome] = {}

    def run(self) -> list[Outcome]:
        """Until every request has ended. Raises: EngineError when the scheduler stops with requests left."""
        scheduler, engine, clock = self.scheduler, self.engine, self.clock
        while True:
            self._admit_due()
            engine.until_s = self._due[0][0] if self._due else math.inf
            while scheduler.num_outstanding < engine.info.depth:
                step = scheduler.next_step(1 if self.options.step_by_step else engine.horizon())
                if step is None:
                    break
                engine.submit(step)
            result = engine.poll()
            if result is not None:
                self._tell(scheduler.commit(result))
            elif self._due:
                clock.advance_to(self._due[0][0])
            elif self._live:
                raise EngineError(f"the scheduler plans nothing, and {len(self._live)} requests wait")
            else:
                return self.outcomes

    def _admit_due(self) -> None:
        due, now_s = self._due, self.clock.now_s
        while due and due[0][0] <= now_s:
            at_s, index = heapq.heappop(due)
            arrival = self.workload.arrivals[index]
            outcome = self._live[str(index)] = Outcome(arrival, at_s)
            self.outcomes.append(outcome)
            self._tell(self.scheduler.add(_request(arrival, at_s)))

    def _tell(self, events: list[Event]) -> None:
        now_s = self.clock.now_s
        for event in events:
            outcome = self._live[event.request_id]
            if isinstance(event, TokensEvent):
                if not outcome.num_tokens:
                    outcome.first_s = now_s
                    outcome.cached_tokens = event.cached_tokens
                    if event.promise is not None and event.promise.predicted_ttft_ms is not None:
                        outcome.predicted_ttft_ms = event.promise.predicted_ttft_ms
                outcome.last_s = now_s
                outcome.num_tokens += len(event.token_ids)
                continue
            if isinstance(event, AdmittedEvent):
                outcome.predicted_ttft_ms = event.promise.predicted_ttft_ms or math.nan
                continue
            if isinstance(event, ErrorEvent):
                outcome.error = event.code
            assert isinstance(event, FinishEvent | ErrorEvent)
            del self._live[event.request_id]
            for follower in self.workload.followers.get(outcome.arrival.index, ()):
                heapq.heappush(self._due, (now_s + self.workload.arrivals[follower].at_s, follower))


def simulate(workload: Workload, machine: Machine, options: Options | None = None) -> list[Outcome]:
    """Run `workload` on `machine` and return what each request got, in order of arrival."""
    return Simulation(workload, machine, options).run()


def _noises(deviation: float, seed: int) -> Callable[[], list[float]]:
    """Factors of the next steps, many at once; `deviation` of their logarithms."""
    generator = np.random.default_rng(seed)
    return lambda: generator.lognormal(0.0, deviation, _NUM_NOISES).tolist()


def _request(arrival: Arrival, at_s: float) -> Request:
    slo = arrival.slo
    return Request(
        request_id=str(arrival.index),
        # A sequence of ints that is no list: 100K tokens must not cost memory before the scheduler looks at them.
        prompt_ids=cast(list[int], Prompt(arrival.stream, arrival.num_prompt)),
        sampling=SamplingParams(
            max_tokens=max(_MAX_TOKENS, arrival.num_output),
            temperature=0.0,
            seed=arrival.index,
            stop_token_ids=(END_ID,),
        ),
        cache_salt=arrival.salt,
        session=arrival.session,
        arrival_s=at_s,
        class_name=slo.name,
        ttft_target_ms=slo.ttft_ms,
        tpot_target_ms=slo.tpot_ms,
        weight=slo.weight,
        priority=slo.priority,
    )
