"""Sessions over HTTP: whose they are, what they are called, how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.test_bad_input import CHAT, HELLO, refusal
from twinpath.config import SchedulerConfig

SESSIONS = "/v1/twinpath/sessions"
FIRST, SECOND = ({"authorization": f"Bearer {key}"} for key in ("first", "second"))


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(http={"api_keys": ("first", "second")}))
    yield server
    server.close()


@pytest.fixture
def keyed(keyed_server: LiveServer) -> Iterator[LiveServer]:
    yield keyed_server
    keyed_server.at_rest()


def talk(server: LiveServer, headers: dict[str, str], content: str = "tell me " * 20, **fields: Any) -> int:
    """One turn; the cached tokens it began with."""
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": content}], **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_session_is_listed_shown_and_ended_under_its_clients_name(server: LiveServer) -> None:
    name = {"x-session-id": "team/agent 7"}
    assert talk(server, name) == 0 and talk(server, name) > 0
    [shown] = [one for one in server.http.get(SESSIONS).json()["data"] if one["id"] == "team/agent 7"]
    assert (shown["turns"], shown["active_turns"], shown["deleted"]) == (2, 0, False)
    assert shown["tokens"] == shown["pages"] * 16 > 0 and 0 < shown["expires_in_s"] <= 300
    one = f"{SESSIONS}/team/agent%207"
    assert server.http.get(one).json()["id"] == "team/agent 7"
    assert server.http.delete(one).json()["deleted"] is True
    refusal(server.http.delete(one), 404)
    refusal(server.http.get(one), 404)
    assert talk(server, name) == 0
    server.http.delete(one)


@pytest.mark.parametrize(
    ("headers", "fields", "name"),
    [
        ({"x-session-affinity": "a"}, {}, "a"),
        ({"X-LiteLLM-Session-Id": "b"}, {"user": "u"}, "b"),
        ({}, {"prompt_cache_key": "c", "user": "u"}, "c"),
        ({}, {"metadata": {"session_id": "d"}}, "d"),
        ({}, {"user": "e"}, "e"),
    ],
)
def test_every_id_that_clients_send_names_a_session(
    server: LiveServer, headers: dict[str, str], fields: dict[str, Any], name: str
) -> None:
    talk(server, headers, **fields)
    assert server.http.delete(f"{SESSIONS}/{name}").status_code == 200


def test_nobody_sees_or_ends_anothers_session(keyed: LiveServer) -> None:
    talk(keyed, {**FIRST, "x-session-id": "same"})
    assert keyed.http.get(SESSIONS, headers=SECOND).json()["data"] == []
    refusal(keyed.http.get(f"{SESSIONS}/same", headers=SECOND), 404)
    refusal(keyed.http.delete(f"{SESSIONS}/same", headers=SECOND), 404)
    refusal(keyed.http.get(SESSIONS), 401)
    assert talk(keyed, {**SECOND, "x-session-id": "same"}) == 0
    assert [one["turns"] for one in keyed.http.get(SESSIONS, headers=FIRST).json()["data"]] == [1]


def test_requests_without_a_name_have_no_session(server: LiveServer) -> None:
    before = len(server.http.get(SESSIONS).json()["data"])
    assert server.post(CHAT, {"messages": HELLO}).status_code == 200
    assert len(server.http.get(SESSIONS).json()["data"]) == before


def test_pages_of_a_session_are_counted_and_free_after_its_time() -> None:
    with live_server(Setup(scheduler=SchedulerConfig(session_ttl_s=0.3))) as server:
        talk(server, {"x-session-id": "s"})
        server.wait_until(lambda: server.replica.gauges.memory.num_sessions_expired == 1, "the session's end")
        memory = server.replica.gauges.memory
        assert (memory.session, memory.prefix, memory.running) == (0, 0, 0)
        text = server.http.get("/metrics").text
        assert 'twinpath:kv_pages{kind="free"' in text and "twinpath:sessions_expired_total" in text
        assert talk(server, {"x-session-id": "s"}) == 0


def test_sessions_can_be_switched_off() -> None:
    with live_server(Setup(scheduler=SchedulerConfig(enable_session_kv=False))) as server:
        talk(server, {"x-session-id": "s"})
        assert server.http.get(SESSIONS).json() == {"object": "list", "data": []}


def test_other_methods_are_refused(server: LiveServer) -> None:
    answer = server.post(SESSIONS, {})
    assert refusal(answer, 405) and answer.headers["allow"] == "GET, HEAD"
    assert server.post(f"{SESSIONS}/x", {}).headers["allow"] == "GET, HEAD, DELETE"


def pages_of(server: LiveServer, name: str) -> int:
    pages: int = server.http.get(f"{SESSIONS}/{name}").json()["pages"]
    return pages


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_at_a_stop_string_belongs_to_its_session(server: LiveServer, stream: bool) -> None:
    """The engine hears of such an end as of one that left; what was said is kept all the same."""
    name = {"x-session-id": f"stops {stream}"}
    body = {"messages": [{"role": "user", "content": "[long]"}], "stop": "x" * 200, "stream": stream}
    assert server.post(CHAT, body, headers=name).status_code == 200
    server.wait_until(lambda: pages_of(server, f"stops {stream}") >= 200 // 16, "the answer's pages")


def test_what_a_cancelled_answer_said_is_forgotten(server: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "[long]"}], "stream": True}
    with (
        server.client() as client,
        client.stream("POST", CHAT, json=body, headers={"x-session-id": "leaves"}) as answer,
    ):
        lines = answer.iter_lines()
        for _ in range(60):
            next(lines)
    server.wait_until(lambda: server.replica.num_inflight == 0, "the cancellation")
    assert pages_of(server, "leaves") <= 2
