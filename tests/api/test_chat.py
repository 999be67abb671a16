from __future__ import annotations

from api.live_server import Setup, live_server
from api.streams import both
from twinpath.engine.scripted import Script


def test_whole_and_streamed_answers_agree() -> None:
    with live_server(Setup()) as server:
        streamed, whole = both(server, "What is the capital of France?")
        assert whole["choices"][0]["message"]["content"] == "Paris is the capital."
        assert streamed.finish_reasons == ["stop"]
