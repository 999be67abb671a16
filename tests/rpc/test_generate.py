"""Generate over a real channel: text, tokens, choices, statuses, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest

from rpc.live_rpc import ANSWER, LiveRpc, live_rpc, until


async def read(call: Any) -> tuple[str, list[int], Any]:
    """Text, token ids and finish of a call with one answer."""
    text, token_ids, finish = "", [], None
    while (response := await call.read()) is not grpc.aio.EOF:
        assert finish is None, "something after the finish"
        text += response.text
        token_ids += response.token_ids
        finish = response.finish if response.HasField("finish") else None
    return text, token_ids, finish


async def refusal(call: Any) -> tuple[Any, str, dict[str, str]]:
    """Status, details and trailing metadata of a call that is refused before its first message."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await read(call)
    return refused.value.code(), refused.value.details() or "", dict(refused.value.trailing_metadata() or ())


async def test_a_prompt_gets_its_tokens_and_one_finish(rpc: LiveRpc) -> None:
    text, token_ids, finish = await read(rpc.generate(text="hi"))
    assert text == ANSWER
    assert bytes(token_ids[:-1]).decode() == ANSWER
    assert finish.reason == "stop"
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (2, len(ANSWER) + 1)
    again, _, _ = await read(rpc.generate(token_ids={"ids": b"hi"}))
    assert again == ANSWER


async def test_limits_stops_and_log_probabilities_are_those_of_http(rpc: LiveRpc) -> None:
    text, _, finish = await read(rpc.generate(text="[abcdef]", sampling={"max_tokens": 3}))
    assert (text, finish.reason) == ("abc", "length")
    text, _, finish = await read(rpc.generate(text="[abcdef]", sampling={"stop": ["de"]}))
    assert (text, finish.reason, finish.stop) == ("abc", "stop", "de")
    responses = [response async for response in rpc.generate(text="hi", sampling={"logprobs": 2, "max_tokens": 2})]
    scores = [entry for response in responses for entry in response.logprobs]
    # The scripted engine's formula for 'P' (80): -(1 + 80 % 7) / 8.
    assert scores[0].token_id == 80 and math.isclose(scores[0].logprob, -0.5)
    assert [top.token_id for top in scores[0].top] == [80, 81]


async def test_n_answers_come_side_by_side_for_one_prefill(rpc: LiveRpc) -> None:
    prompt = "many pages of prompt, " * 30
    texts: dict[int, str] = {}
    finishes = {}
    async for response in rpc.generate(text=prompt, n=3):
        texts[response.index] = texts.get(response.index, "") + response.text
        if response.HasField("finish"):
            finishes[response.index] = response.finish
    assert texts == {0: ANSWER, 1: ANSWER, 2: ANSWER}
    assert [finishes[index].usage.prompt_tokens for index in range(3)] == [len(prompt), 0, 0]
    computed = sum(len(plan.tokens) for plan in rpc.engine.plans)
    assert len(prompt) < computed <= len(prompt) + 2 * 16 + 3 * 22


async def test_the_first_token_travels_alone_and_later_ones_in_company(rpc: LiveRpc) -> None:
    packed = [r async for r in rpc.generate(text="[long]", sampling={"max_tokens": 100}, packing={"wait_ms": 1000})]
    sizes = [len(response.token_ids) for response in packed if response.token_ids]
    assert sizes[0] == 1 and sum(sizes) == 100
    assert len(sizes) < 10


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, "INVALID_ARGUMENT", "prompt"),
        ({"text": "x", "sampling": {"temperature": 9.0}}, "INVALID_ARGUMENT", "temperature"),
        ({"text": "x", "sampling": {"temperature": math.nan}}, "INVALID_ARGUMENT", "sampling.temperature"),
        ({"text": "x", "sampling": {"logit_bias": {5000: 1.0}}}, "INVALID_ARGUMENT", "logit_bias"),
        ({"text": "x", "sampling": {"logit_bias": {5: math.inf}}}, "INVALID_ARGUMENT", "logit_bias"),
        ({"text": "x", "n": 500}, "INVALID_ARGUMENT", "n"),
        ({"text": "x", "packing": {"wait_ms": 5000}}, "INVALID_ARGUMENT", "packing.wait_ms"),
        ({"text": "x", "model": "gpt-9"}, "NOT_FOUND", "model"),
        ({"text": "p" * 9000}, "INVALID_ARGUMENT", "prompt"),
    ],
)
async def test_mistakes_are_statuses_that_name_the_field(
    rpc: LiveRpc, fields: dict[str, Any], status: str, param: str
) -> None:
    code, details, trailing = await refusal(rpc.generate(**fields))
    assert code.name == status and details
    assert trailing["twinpath-param"] == param
    if fields.get("text", "").startswith("p"):
        assert trailing["twinpath-code"] == "context_length_exceeded"


async def test_a_failure_of_the_engine_is_internal(rpc: LiveRpc) -> None:
    code, _, trailing = await refusal(rpc.generate(text="[fails at 2]"))
    assert code is grpc.StatusCode.INTERNAL
    assert trailing["twinpath-code"] == "engine_error"


async def test_keys_are_asked_for() -> None:
    async with live_rpc(api_keys=("sk-right",)) as rpc:
        code, _, _ = await refusal(rpc.generate(text="hi"))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        text, _, _ = await read(rpc.generate(text="hi", metadata=(("authorization", "Bearer sk-right"),)))
        assert text == ANSWER


async def test_a_deadline_reaches_the_engine(rpc: LiveRpc) -> None:
    code, _, _ = await refusal(rpc.generate(text="[long]", timeout=0.3))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await rpc.until_idle()


async def test_cancelling_reaches_all_answers(rpc: LiveRpc) -> None:
    call = rpc.generate(text="[long]", n=3)
    await call.read()
    call.cancel()
    await rpc.until_idle()


async def test_abort_ends_a_call_by_either_id(rpc: LiveRpc) -> None:
    call = rpc.generate(text="[long]", request_id="mine")
    await call.read()
    assert await rpc.abort("mine") == 1
    code, _, _ = await refusal(call)
    assert code is grpc.StatusCode.CANCELLED
    await rpc.until_idle()
    assert await rpc.abort("mine") == 0
    assert await rpc.abort("nobody") == 0

    other = rpc.generate(text="[long]")
    await other.read()
    own_id = dict(await other.initial_metadata())["x-request-id"]
    assert await rpc.abort(own_id) == 1


async def test_a_call_that_waits_can_be_aborted(rpc: LiveRpc) -> None:
    blocker = rpc.generate(text="[hangs]", request_id="blocker")
    await blocker.read()
    waiting = rpc.generate(text="hi", request_id="waiting")
    await waiting.initial_metadata()
    await until(lambda: rpc.replica.num_inflight == 2, "two in flight")
    assert await rpc.abort("waiting") == 1
    code, _, _ = await refusal(waiting)
    assert code is grpc.StatusCode.CANCELLED
    blocker.cancel()
    rpc.engine.close()


async def test_a_draining_server_refuses_new_calls_and_finishes_old_ones(rpc: LiveRpc) -> None:
    running = rpc.generate(text="[long]", sampling={"max_tokens": 100})
    await running.read()
    stopping = asyncio.ensure_future(rpc.server.stop(10.0))
    await asyncio.sleep(0)
    code, _, trailing = await refusal(rpc.generate(text="hi"))
    assert code is grpc.StatusCode.UNAVAILABLE and trailing["twinpath-code"] == "shutting_down"
    _, token_ids, finish = await read(running)
    assert len(token_ids) == 99 and finish.reason == "length"
    await stopping
