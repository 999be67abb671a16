"""One request's events on their way to one reader, whatever the reader does."""

from __future__ import annotations

import asyncio

import pytest

from gateway.asking import make_request
from twinpath.contracts import AnswerComplete
from twinpath.errors import Overloaded
from twinpath.gateway.generation import Generation
from twinpath.types import ErrorEvent, TokensEvent


class Owner:
    """Notes what it is told; refuses when told to."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.num_begun = 0
        self.left: list[bool] = []
        self._refusal = refusal

    async def begin(self, generation: Generation) -> None:
        self.num_begun += 1
        if self._refusal is not None:
            raise self._refusal

    def leave(self, generation: Generation) -> None:
        self.left.append(generation.complete)


def generation_of(owner: Owner) -> Generation:
    return Generation(make_request("r", "hi"), owner)


async def test_events_come_in_order_and_end_with_the_terminal_one() -> None:
    owner = Owner()
    generation = generation_of(owner)
    assert owner.num_begun == 0, "nothing happens before somebody reads"
    first, second, last = TokensEvent("r", [1]), TokensEvent("r", [2]), ErrorEvent("r", "enough")
    reader = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    generation.push(first)
    assert await reader is first
    for event in (second, last):
        generation.push(event)
    assert [event async for event in generation] == [second, last]
    assert owner.num_begun == 1 and owner.left == []


async def test_a_refusal_leaves() -> None:
    owner = Owner(Overloaded("full"))
    generation = generation_of(owner)
    with pytest.raises(Overloaded):
        await anext(generation)
    assert [event async for event in generation] == [] and owner.left == [False]


async def test_a_cancelled_reader_has_left() -> None:
    owner = Owner()
    reader = asyncio.ensure_future(anext(generation_of(owner)))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert owner.left == [False]


async def test_a_closed_one_has_no_more_events() -> None:
    owner = Owner()
    generation = generation_of(owner)
    generation.push(TokensEvent("r", [1]))
    await generation.aclose()
    assert [event async for event in generation] == []
    assert owner.num_begun == 0 and owner.left == [False]


async def test_who_has_all_it_wanted_leaves_a_whole_answer() -> None:
    owner = Owner()
    generation = generation_of(owner)
    generation.push(TokensEvent("r", [1]))
    await anext(generation)
    with pytest.raises(StopAsyncIteration):
        await generation.athrow(AnswerComplete())
    assert owner.left == [True]
    with pytest.raises(ValueError, match="other"):
        await generation_of(owner).athrow(ValueError("other"))
    assert owner.left == [True, False]
