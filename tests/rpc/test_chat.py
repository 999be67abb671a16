"""Chat over a real channel: many turns on one stream."""

from __future__ import annotations

import json

import grpc
import pytest

from rpc.live_rpc import ANSWER, LiveRpc, turn
from twinpath.rpc import wire


async def test_turns_go_on_where_the_last_one_ended(rpc: LiveRpc) -> None:
    call = rpc.chat()
    first, finish = await turn(call, "one " * 50)
    assert first == ANSWER
    assert finish.reason == "stop" and finish.usage.cached_tokens == 0
    second, later = await turn(call, "two")
    assert second == ANSWER
    # The whole conversation is in the prompt, and all of the first turn but its last page comes from the cache.
    assert later.usage.prompt_tokens > finish.usage.prompt_tokens + len(ANSWER)
    assert later.usage.cached_tokens >= finish.usage.prompt_tokens - 16
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_the_server_s_history_is_what_the_client_would_send(rpc: LiveRpc) -> None:
    one = rpc.chat()
    await turn(one, "hello")
    _, remembered = await turn(one, "again")
    whole = rpc.chat()
    said = [("user", "hello"), ("assistant", ANSWER), ("user", "again")]
    messages = [{"role": role, "content": text} for role, text in said]
    await whole.write(wire.ChatRequest(messages=messages))
    responses = []
    while not (responses and responses[-1].HasField("finish")):
        responses.append(await whole.read())
    assert responses[-1].finish.usage.prompt_tokens == remembered.usage.prompt_tokens
    for call in (one, whole):
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_tool_loop(rpc: LiveRpc) -> None:
    call = rpc.chat()
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    question = {"role": "user", "content": "What is the weather in Paris?"}
    await call.write(wire.ChatRequest(messages=[question], tools=json.dumps(tools)))
    starts, arguments, finish = [], "", None
    while finish is None:
        response = await call.read()
        for part in response.parts:
            assert not part.text, "markup in the content"
            if part.WhichOneof("part") == "tool_call":
                starts.append(part.tool_call)
            arguments += part.tool_arguments.text
        finish = response.finish if response.HasField("finish") else None
    [start] = starts
    assert (start.index, start.name, json.loads(arguments)) == (0, "get_weather", {"city": "Paris"})
    assert finish.reason == "tool_calls"
    # The server has kept the call and the tools: only the result is new.
    await call.write(wire.ChatRequest(messages=[{"role": "tool", "content": "18 degrees", "tool_call_id": start.id}]))
    text = ""
    while not (response := await call.read()).HasField("finish"):
        text += "".join(part.text for part in response.parts)
    assert text == "It is 18 degrees."
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_wrong_turn_ends_the_stream_with_its_status(rpc: LiveRpc) -> None:
    call = rpc.chat()
    await turn(call, "hello")
    await call.write(wire.ChatRequest(messages=[{"role": "wizard", "content": "x"}]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(refused.value.trailing_metadata())["twinpath-param"] == "messages[2].role"


async def test_options_that_are_no_json_are_refused(rpc: LiveRpc) -> None:
    call = rpc.chat()
    await call.write(wire.ChatRequest(messages=[{"role": "user", "content": "x"}], tools="[{"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_cancelling_a_stream_cancels_its_turn(rpc: LiveRpc) -> None:
    call = rpc.chat()
    await call.write(wire.ChatRequest(messages=[{"role": "user", "content": "[long]"}], request_id="mine"))
    await call.read()
    call.cancel()
    await rpc.until_idle()


async def test_abort_ends_the_stream(rpc: LiveRpc) -> None:
    call = rpc.chat()
    await call.write(wire.ChatRequest(messages=[{"role": "user", "content": "[long]"}], request_id="mine"))
    await call.read()
    assert await rpc.abort("mine") == 1
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        while True:
            await call.read()
    assert ended.value.code() is grpc.StatusCode.CANCELLED
