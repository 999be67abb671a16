"""Who goes first: the part of scheduling that is opinion, apart from the bookkeeping that must always hold.

A policy gives each sequence a key, smaller first; equal keys go by arrival. Times are seconds of the scheduler's clock.
"""

from __future__ import annotations

from math import log
from typing import Protocol

from twinpath.scheduler.sequence import Sequence

#: Stands for the target of a request that named none, beside twice its own prefill: long, so that whoever has a target
#: comes first, and finite, so that it ages.
DEFAULT_TARGET_S = 30.0

#: Targets that a request waits at most before it goes before all others.
MAX_AGE = 4.0


class Policy(Protocol):
    """Orders sequences, and names the one that gives way when pages run out."""

    #: Keys change as time passes: the queue asks again now and then.
    @property
    def dynamic(self) -> bool: ...

    def key(self, sequence: Sequence, now_s: float) -> float: ...

    def victim(self, running: list[Sequence]) -> Sequence:
        """One of `running` (oldest first, not empty)."""
        ...


class FirstComeFirstServed:
    """By arrival. The youngest gives way, so that the oldest always gets on."""

    dynamic = False
    relegate = True

    def key(self, sequence: Sequence, now_s: float) -> float:
        return 0.0

    def victim(self, running: list[Sequence]) -> Sequence:
        return running[-1]


class StaticPriority(FirstComeFirstServed):
    """By the request's own number, as vLLM does: no ageing, the low can starve."""

    def key(self, sequence: Sequence, now_s: float) -> float:
        return float(sequence.priority)

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=lambda sequence: (sequence.priority, sequence.order))


class ShortestFirst(FirstComeFirstServed):
    """By tokens to compute: the best mean, and the long can starve."""

    def key(self, sequence: Sequence, now_s: float) -> float:
        return float(sequence.num_uncached)


class EarliestDeadline(FirstComeFirstServed):
    """By arrival plus target: optimal while everything can be met, poor beyond (it serves who is late already)."""

    def key(self, sequence: Sequence, now_s: float) -> float:
        return deadline_s(sequence)


class Urgency(FirstComeFirstServed):
    """By a weight that is 1 while a request is early, rises steeply about its target, and slowly ever after."""

    dynamic = True

    def key(self, sequence: Sequence, now_s: float) -> float:
        return -sequence.weight * urgency((now_s - sequence.arrival_s) / target_s(sequence))


class Twinpath(FirstComeFirstServed):
    """Deadlines, with a handicap for long prefills, among those that can still be met; who cannot goes behind them,
    until an age that no one may pass.

    Three bands: over-age by arrival; can be met, by deadline plus LENGTH_HANDICAP times what is left of its own
    prefill (so that who is half done is not overtaken by a newcomer as long as its other half); cannot be met any
    more, by arrival. While all can be met the handicap changes little; under overload it serves first those that
    cost the others least, so that fewer miss. Nobody late makes another late, and nobody waits longer than MAX_AGE
    targets plus the work of the over-age before it.
    """

    dynamic = True

    def key(self, sequence: Sequence, now_s: float) -> float:
        prefill_s, due_s = prefill_left_s(sequence), deadline_s(sequence)
        if now_s <= due_s - prefill_s or not self.relegate:
            return due_s + LENGTH_HANDICAP * prefill_s / sequence.weight
        if over_age(sequence, now_s):
            return sequence.arrival_s - _BAND_S
        return sequence.arrival_s + _BAND_S


#: Prefills by which a request of weight 1 steps back: between 3 and 12 made no difference that seeds could tell apart.
LENGTH_HANDICAP = 6.0
#: Longer than any clock reading: keeps bands apart.
_BAND_S = 1e10

POLICIES: dict[str, type[FirstComeFirstServed]] = {
    "fcfs": FirstComeFirstServed,
    "priority": StaticPriority,
    "sjf": ShortestFirst,
    "edf": EarliestDeadline,
    "base": Urgency,
    "twinpath": Twinpath,
}


def make_policy(name: str, *, relegate: bool = True) -> Policy:
    """`relegate`: whoever cannot be met any more goes behind the others (`twinpath` only).

    Raises: KeyError for an unknown name (settings are checked before).
    """
    policy = POLICIES[name]()
    policy.relegate = relegate
    return policy


def target_s(sequence: Sequence) -> float:
    if sequence.ttft_target_ms is None:
        return DEFAULT_TARGET_S + 2e-3 * sequence.prefill_ms
    return max(sequence.ttft_target_ms / 1e3, 1e-3)


def deadline_s(sequence: Sequence) -> float:
    return sequence.arrival_s + target_s(sequence)


def prefill_left_s(sequence: Sequence) -> float:
    """Its prefill alone on the engine, the rows that are planned left out."""
    share = (sequence.num_prompt - sequence.num_planned) / sequence.num_uncached
    return min(max(share, 0.0), 1.0) * sequence.prefill_ms / 1e3


def over_age(sequence: Sequence, now_s: float) -> bool:
    """Whether it has waited for longer than anybody should."""
    return now_s - sequence.arrival_s > MAX_AGE * target_s(sequence)


def urgency(waited: float) -> float:
    """The weight of a request that has waited this multiple of its target: 1 to 0.9, then linear, from 1.2 on
    logarithmic (with the step of the rule as given)."""
    if waited <= 0.9:
        return 1.0
    if waited <= 1.2:
        return 1.0 + (waited - 0.9) / 0.3
    return 3.5 + log(waited)
