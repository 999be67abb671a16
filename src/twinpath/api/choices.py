"""Several answers to one prompt: the first computes it, the others find its KV in the prefix cache."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from twinpath.api.generation import Ask, Door
from twinpath.api.schemas import INT64_MAX, MAX_CHOICES, SamplingFields
from twinpath.api.turn import Turn
from twinpath.errors import InvalidRequest
from twinpath.text.answer import AnswerParser
from twinpath.types import SamplingParams


def num_choices(fields: SamplingFields, num_prompts: int = 1) -> int:
    """How many answers each prompt gets.

    Raises: InvalidRequest when that is too many for one call.
    """
    asked = int(fields.n or 1)
    if asked * num_prompts > MAX_CHOICES:
        raise InvalidRequest(
            f"'n' asks for {asked * num_prompts} answers in all; at most {MAX_CHOICES} are given.", param="n"
        )
    return asked


def open_choices(
    door: Door,
    ask: Ask,
    prompt_ids: list[int],
    sampling: SamplingParams,
    *,
    call_id: str,
    make_parser: Callable[[], AnswerParser | None] | None = None,
) -> list[Turn]:
    """A turn for each answer; choice i draws with the seed after that of choice i - 1, so that they differ and can be
    asked for again.

    Raises: InvalidRequest.
    """
    count = num_choices(ask.fields)
    if count == 1:
        parser = make_parser() if make_parser else None
        return [door.turn(ask, prompt_ids, sampling, request_id=call_id, parser=parser)]
    leader = f"{call_id}-0"
    return [
        door.turn(
            ask,
            prompt_ids,
            msgspec.structs.replace(sampling, seed=_later_seed(sampling.seed, index)),
            request_id=f"{call_id}-{index}",
            parser=make_parser() if make_parser else None,
            follows=leader if index else "",
        )
        for index in range(count)
    ]


def _later_seed(seed: int, steps: int) -> int:
    """`steps` later, around the end of 64-bit integers."""
    later = seed + steps
    return later - 2**64 if later > INT64_MAX else later
