"""Nobody starves: the bound on waiting that the documentation states, against a flood that never ends."""

from __future__ import annotations

import pytest

from twinpath.plan import MACHINES, Arrival, Options, SloClass, Workload, simulate
from twinpath.plan.tokens import TokenStream
from twinpath.scheduler import CostModel, LaneSettings, StepShape
from twinpath.scheduler.cost import prefill_context
from twinpath.scheduler.policy import MAX_AGE

MACHINE = MACHINES["h200-8b"]
#: Twice as much as the machine prefills.
FLOOD = SloClass("flood", ttft_ms=100_000, tpot_ms=1000)
LONG = SloClass("long", ttft_ms=2000, tpot_ms=1000)
NUM_FLOOD, FLOOD_TOKENS, LONG_TOKENS = 900, 1800, 20_000


def arrival(index: int, at_s: float, num_prompt: int, slo: SloClass) -> Arrival:
    stream = TokenStream((), 1, (1 << 30) + index)
    return Arrival(index, at_s, -1, stream, num_prompt, 4, slo, "", "", num_prompt)


def prefill_s(num_tokens: int) -> float:
    shape = StepShape(num_prefill=num_tokens, prefill_context=prefill_context(0, num_tokens))
    return CostModel(MACHINE.cost).predict(shape) / 1e3


def wait_of_the_long_one(policy: str) -> float:
    every_s = prefill_s(FLOOD_TOKENS) / 2
    arrivals = [arrival(index, index * every_s, FLOOD_TOKENS, FLOOD) for index in range(NUM_FLOOD)]
    arrivals.append(arrival(NUM_FLOOD, 5.0, LONG_TOKENS, LONG))
    outcomes = simulate(Workload("flood", arrivals, (FLOOD, LONG)), MACHINE, Options(policy, LaneSettings()))
    [outcome] = [outcome for outcome in outcomes if outcome.arrival.slo is LONG]
    return outcome.ttft_ms / 1e3


@pytest.mark.parametrize("policy", ["twinpath", "edf"])
def test_a_long_request_waits_at_most_its_age_limit_and_its_own_prefill(policy: str) -> None:
    """One step of the flood may be under way, and the long one's prefill shares steps with streams."""
    limit_s = MAX_AGE * LONG.ttft_ms / 1e3
    assert wait_of_the_long_one(policy) <= limit_s + 1.5 * prefill_s(LONG_TOKENS) + 0.5
    # The flood alone would keep it waiting for much longer.
    assert NUM_FLOOD * prefill_s(FLOOD_TOKENS) - 5.0 > 3 * limit_s
