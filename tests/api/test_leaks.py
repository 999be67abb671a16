"""Nothing that belongs to a request outlives it, however it ends."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

from api.live_server import LiveServer
from api.test_disconnects import RawClient
from twinpath.api.client_watch import ClientWatch
from twinpath.api.exchange import Exchange
from twinpath.api.sse import EventStream
from twinpath.api.turn import Turn

PER_REQUEST = (Exchange, Turn, ClientWatch, EventStream, asyncio.Task)
NUM_ROUNDS = 25


def ask_in_every_way(server: LiveServer) -> None:
    for streamed in (False, True):
        server.chat("good", stream=streamed)
        server.chat("[abcdef]", stream=streamed, stop="c")
        server.chat("[fails at 0]", stream=streamed)
        server.chat("[fails at 2]", stream=streamed)
        server.chat("bad", stream=streamed, temperature=9)
        server.complete(["a", "b"], stream=streamed, echo=True, logprobs=1)
        server.complete(["a", "[fails at 0]"], stream=streamed)
    server.post("/v1/chat/completions", b"not json")
    server.http.get("/nowhere")
    leaving = RawClient(server, stream=True, messages=[{"role": "user", "content": "[long]"}])
    leaving.read_events(2)
    leaving.close()


def living() -> Counter[str]:
    """Per-request objects after a collection."""
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, PER_REQUEST))


def test_no_object_of_a_request_outlives_it(server: LiveServer) -> None:
    ask_in_every_way(server)
    server.wait_until(server.is_idle, "all ended")
    before = living()
    for _ in range(NUM_ROUNDS):
        ask_in_every_way(server)
    server.wait_until(server.is_idle, "all ended")
    # The newest exchange of each kept connection stays with it.
    server.wait_until(lambda: sum(living().values()) <= sum(before.values()) + 4, "all are gone")
