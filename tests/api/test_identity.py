"""Keys, ids, origins, cache spaces and session keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import Raw

from api.live_server import LiveServer, Setup, live_server
from api.streams import both, parse
from api.test_bad_input import CHAT, HELLO, refusal
from twinpath.api.identity import Caller, KeyRing
from twinpath.api.schemas import SamplingFields

KEYS = ("sk-first", "sk-second-ü")


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(http={"api_keys": KEYS, "allowed_origins": ("https://app.example",)}))
    yield server
    server.close()


@pytest.fixture
def keyed(keyed_server: LiveServer) -> Iterator[LiveServer]:
    yield keyed_server
    keyed_server.at_rest()


def bearer(key: str) -> dict[str, bytes]:
    return {"authorization": b"Bearer " + key.encode()}


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_taken_from_either_header(keyed: LiveServer, key: str) -> None:
    for headers in (bearer(key), {"x-api-key": key.encode()}, {"authorization": b"bearer  " + key.encode()}):
        assert keyed.post(CHAT, {"messages": HELLO}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"authorization": "Bearer"},
        {"x-api-key": "sk-firs"},
        {"authorization": "Basic c2stZmlyc3Q="},
        bearer("sk-first ü"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/metrics", "/openapi.json", "/nowhere"])
def test_every_route_but_health_wants_a_key(keyed: LiveServer, path: str, headers: dict[str, Any]) -> None:
    answer = keyed.http.get(path, headers=headers)
    error = refusal(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert "sk-" not in error["message"]


def test_health_and_preflights_need_no_key(keyed: LiveServer) -> None:
    for path in ("/health", "/health/ready"):
        assert keyed.http.get(path).status_code == 200
    assert keyed.http.options(CHAT).status_code == 204


def test_an_open_server_takes_any_key(server: LiveServer) -> None:
    for headers in ({}, bearer("EMPTY"), bearer("fake-api-key"), {"x-api-key": "x"}, {"authorization": "nonsense"}):
        assert server.post(CHAT, {"messages": HELLO}, headers=headers).status_code == 200


def test_preflights_carry_cors_headers(server: LiveServer) -> None:
    asked = {"origin": "https://ui", "access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    for path in (CHAT, "/v1/models", "/nowhere"):
        answer = server.http.options(path, headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-headers"] == "x-a"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.content == b""


def test_every_answer_carries_cors_headers(server: LiveServer) -> None:
    for answer in (server.chat(), server.chat(stream=True), server.post(CHAT, b"x"), server.http.get("/nowhere")):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_listed_origins_only(keyed: LiveServer) -> None:
    good = keyed.http.options(CHAT, headers={"origin": "https://app.example"})
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    unauthorized = keyed.http.get("/v1/models", headers={"origin": "https://app.example"})
    assert unauthorized.status_code == 401
    assert unauthorized.headers["access-control-allow-origin"] == "https://app.example"
    other = keyed.http.options(CHAT, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    assert other.headers["vary"] == "origin"


@pytest.mark.parametrize("offered", ["abc-123", "x" * 128, "a/b:c+d="])
def test_sane_request_ids_are_echoed(server: LiveServer, offered: str) -> None:
    bodies: list[dict[str, Any]] = [{"messages": HELLO}, {"messages": HELLO, "stream": True}, {"messages": []}]
    for body in bodies:
        assert server.post(CHAT, body, headers={"x-request-id": offered}).headers["x-request-id"] == offered


@pytest.mark.parametrize("offered", ["", "x" * 129, "two words", 'quo"te', "umläut".encode()])
def test_other_request_ids_are_replaced(server: LiveServer, offered: Any) -> None:
    got = server.post(CHAT, {"messages": HELLO}, headers={"x-request-id": offered}).headers["x-request-id"]
    assert got.startswith("req_") and got != offered


def test_b1_23_the_same_request_id_twice_at_once(server: LiveServer) -> None:
    def ask(number: int) -> Any:
        body = {"messages": HELLO, "request_id": "same", "stream": number % 2 == 1}
        return server.post(CHAT, body, headers={"x-request-id": "same"})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    streams = [parse(answer.text) for answer in answers[1::2]]
    whole = [answer.json() for answer in answers[::2]]
    assert {streamed.text for streamed in streams} == {"Paris is the capital."}
    assert {answer["choices"][0]["message"]["content"] for answer in whole} == {"Paris is the capital."}
    ids = {answer["id"] for answer in whole} | {streamed.chunks[0]["id"] for streamed in streams}
    assert len(ids) == 8 and not any("same" in answer_id for answer_id in ids)


def cached_tokens(server: LiveServer, prompt: str, key: str | None = None, **fields: Any) -> int:
    body = {"messages": [{"role": "user", "content": prompt}], **fields}
    answer = server.post(CHAT, body, headers=bearer(key) if key else {})
    count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_keys_never_share_cached_prefixes(keyed: LiveServer) -> None:
    prompt = "a shared system prompt " * 10
    first, second = KEYS
    assert cached_tokens(keyed, prompt, first) == 0
    assert cached_tokens(keyed, prompt, first) > 0
    assert cached_tokens(keyed, prompt, second) == 0
    # Not even with the salt of another's making.
    assert cached_tokens(keyed, prompt, second, cache_salt="s") == 0
    assert cached_tokens(keyed, prompt, first, cache_salt="s") == 0
    assert cached_tokens(keyed, prompt, first, cache_salt="s") > 0


def test_b1_21_equal_prompts_give_equal_answers_from_the_cache(server: LiveServer) -> None:
    prompt = "one prompt of about fifteen hundred tokens " * 35
    answers = [server.chat(prompt, temperature=0).json() for _ in range(4)]
    streamed, _ = both(server, prompt, temperature=0)
    assert streamed.text == answers[0]["choices"][0]["message"]["content"]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert all(1400 < count < 1510 for count in cached[1:])


def test_b1_21_conversations_share_their_common_prefix_only() -> None:
    """The scripted engine refuses a plan whose KV is not the request's own: a shared page with a secret would fail."""
    with live_server(Setup()) as server:
        system = {"role": "system", "content": "be brief " * 20}
        for secret in ("S3CRET", "other", "S3CRET", "third"):
            body = {"messages": [system, {"role": "user", "content": f"keep {secret}"}]}
            answer = server.post(CHAT, body).json()
            assert answer["choices"][0]["message"]["content"] == "Paris is the capital."


# ---------------------------------------------------------------------------------------------------- session keys


def scope(**headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


def test_session_comes_from_the_first_source_that_has_one() -> None:
    caller = Caller()
    fields = SamplingFields(prompt_cache_key="cache", metadata=Raw(b'{"session_id": "meta"}'), user="user")
    by_header = caller.session(scope(x_session_id="A", x_session_affinity="B"), fields)
    assert by_header == caller.session(scope(x_session_id="A"), SamplingFields())
    assert by_header != caller.session(scope(x_session_affinity="B"), fields)
    assert caller.session(scope(), fields) == caller.session(scope(), SamplingFields(user="cache"))
    assert caller.session(scope(), SamplingFields(metadata=Raw(b'{"session_id": "m"}'), user="u")) == caller.session(
        scope(), SamplingFields(user="m")
    )
    assert caller.session(scope(), SamplingFields(metadata=Raw(b"[1]"))) == ""
    assert caller.session(scope(x_session_id="  "), SamplingFields()) == ""


def test_sessions_of_two_keys_differ_and_show_neither() -> None:
    ring = KeyRing(KEYS)
    first, second = (ring.identify(scope(x_api_key=key)) for key in KEYS)
    sessions = {caller.session(scope(x_session_id="same"), SamplingFields()) for caller in (first, second, Caller())}
    assert len(sessions) == 3
    assert not any("same" in session or "sk-" in session for session in sessions)


def test_salts_of_joined_parts_do_not_collide() -> None:
    assert Caller("ab").cache_salt("c") != Caller("a").cache_salt("bc")
    assert Caller().cache_salt(None) == Caller().cache_salt("") == ""
