"""A gRPC server on a loopback port over the scripted engine, and a channel to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from twinpath.api.app import build_entrance
from twinpath.config import EngineConfig, HttpConfig, ServeConfig
from twinpath.engine.scripted import Script, ScriptedEngine, ScriptFile
from twinpath.gateway import LocalLauncher, Replica
from twinpath.rpc import wire
from twinpath.rpc.server import RpcServer
from twinpath.text.byte_model import byte_model

MODEL = "org/scripted"
ANSWER = "Paris is the capital."
#: A bound that only a hang reaches.
WAIT_S = 20.0
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPTS = (
    Script(match="18 degrees", text="It is 18 degrees."),
    Script(match="weather", text=CALL, chunks=(1, 4, 2)),
    Script(match="[abcdef]", text="abcdef"),
    Script(match="[long]", text="x" * 3000, step_ms=2.0),
    Script(match="[fails at 2]", text="abc", fail_at=2),
    Script(match="[hangs]", text="abc", hang_at=1),
)


@dataclass(frozen=True)
class LiveRpc:
    """A running server and its client."""

    channel: Any
    replica: Replica
    engine: ScriptedEngine
    server: RpcServer

    def generate(self, request: Any = None, metadata: Any = (), timeout: float = WAIT_S, **fields: Any) -> Any:
        """A call of Generate."""
        method = self.channel.unary_stream(
            f"/{wire.SERVICE}/Generate", wire.GenerateRequest.SerializeToString, wire.GenerateResponse.FromString
        )
        return method(request or wire.GenerateRequest(**fields), metadata=metadata, timeout=timeout)

    def chat(self, metadata: Any = (), timeout: float = WAIT_S) -> Any:
        """A call of Chat, to be written to and read from."""
        method = self.channel.stream_stream(
            f"/{wire.SERVICE}/Chat", wire.ChatRequest.SerializeToString, wire.ChatResponse.FromString
        )
        return method(metadata=metadata, timeout=timeout)

    async def abort(self, request_id: str) -> int:
        method = self.channel.unary_unary(
            f"/{wire.SERVICE}/Abort", wire.AbortRequest.SerializeToString, wire.AbortResponse.FromString
        )
        answer = await method(wire.AbortRequest(request_id=request_id))
        return int(answer.num_aborted)

    async def until_idle(self) -> None:
        """No request is running or waiting, and no KV page is held."""
        await until(lambda: self.replica.num_inflight == 0, "no request is in flight")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll a state that announces nothing."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S} s: {what}") from None


async def turn(call: Any, *texts: str, **fields: Any) -> tuple[str, Any]:
    """One turn of a Chat: its text, and the message that finished it."""
    messages = [{"role": "user", "content": text} for text in texts]
    await call.write(wire.ChatRequest(messages=messages, **fields))
    answer = ""
    while True:
        response = await call.read()
        assert response is not grpc.aio.EOF, await call.details()
        answer += "".join(part.text for part in response.parts)
        if response.HasField("finish"):
            return answer, response.finish


@asynccontextmanager
async def live_rpc(**http: Any) -> AsyncIterator[LiveRpc]:
    """Serve until the end of the `with`, which must find nothing left running."""
    config = ServeConfig(
        model="scripted://",
        served_model_name=MODEL,
        engine=EngineConfig(model_path=Path("scripted.json"), kind="scripted"),
        http=HttpConfig(**http),
    )
    engine = ScriptedEngine(ScriptFile(scripts=SCRIPTS, default=Script(text=ANSWER)), keep_plans=True)
    replica = Replica(LocalLauncher(engine))
    await replica.start()
    entrance = build_entrance(config, byte_model(tool_format="hermes"), replica)
    server = RpcServer(entrance, config.http)
    server.bind("127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            live = LiveRpc(channel, replica, engine, server)
            yield live
            await live.until_idle()
    finally:
        await server.stop(0)
        await replica.stop()
        entrance.door.offload.close()
