"""Composed loads: 95 % short requests beside 5 % up to 128K tokens, steady or in bursts. No public trace has it."""

from __future__ import annotations

import math
from random import Random

from twinpath.errors import UserError
from twinpath.plan.arrivals import Trace, Turn

#: Load 1, requests per second.
_RATE = 4.0
_SHARE_LONG = 0.05
_SHORT_TOKENS = (16, 128)
_LONG_TOKENS = (8192, 131072 - 512)
#: Bursts: every minute, five seconds long, at six times the rate of the rest.
_BURST_PERIOD_S, _BURST_S, _BURST_FACTOR = 60.0, 5.0, 6.0


def compose_mix(kind: str, num_requests: int, seed: int) -> Trace:
    """`kind`: "mix" (Poisson) or "bursts" (Poisson with a rate that jumps). Raises: UserError on another kind."""
    if kind not in ("mix", "bursts"):
        raise UserError(f"unknown composed load {kind!r}: mix or bursts")
    random = Random(f"{kind} {seed}")
    # The mean rate is the same for both kinds.
    mean_factor = 1 + (_BURST_FACTOR - 1) * _BURST_S / _BURST_PERIOD_S
    now_s = 0.0
    turns: list[Turn] = []
    for _ in range(num_requests):
        rate = _RATE
        if kind == "bursts":
            rate *= (_BURST_FACTOR if now_s % _BURST_PERIOD_S < _BURST_S else 1.0) / mean_factor
        now_s += random.expovariate(rate)
        is_long = random.random() < _SHARE_LONG
        low, high = _LONG_TOKENS if is_long else _SHORT_TOKENS
        num_prompt = round(math.exp(random.uniform(math.log(low), math.log(high))))
        num_output = min(1 + round(random.expovariate(1 / (256 if is_long else 64))), 512)
        turns.append(Turn(now_s, num_prompt, num_output))
    return Trace(kind, turns, notes=(f"{_SHARE_LONG:.0%} long prompts, log-uniform {low_high(_LONG_TOKENS)} tokens",))


def low_high(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]:,} to {bounds[1]:,}"
