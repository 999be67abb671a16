"""Pinned templates over HTTP: who may manage them, who uses them, what is kept of a conversation's beginning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.test_bad_input import CHAT, refusal
from twinpath.api.schemas import ChatMessage
from twinpath.api.templates import TemplateRequest, pinned_prompt
from twinpath.cli.pinned import read_pinned
from twinpath.config import SchedulerConfig
from twinpath.errors import UserError
from twinpath.text.byte_model import byte_model

TEMPLATES = "/v1/twinpath/templates"
ADMIN, FIRST, SECOND = ({"authorization": f"Bearer {key}"} for key in ("admin", "first", "second"))
SYSTEM = {"role": "system", "content": "You are careful, and you say what you did. " * 4}


@pytest.fixture(scope="module")
def managed_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(http={"api_keys": ("first", "second"), "admin_keys": ("admin",)}))
    yield server
    server.close()


@pytest.fixture
def managed(managed_server: LiveServer) -> Iterator[LiveServer]:
    yield managed_server
    for one in managed_server.http.get(TEMPLATES, headers=ADMIN).json()["data"]:
        managed_server.http.delete(f"{TEMPLATES}/{one['name']}", headers=ADMIN)
    managed_server.at_rest()


def post(server: LiveServer, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"name": "t", "messages": [SYSTEM], **fields}
    return server.post(TEMPLATES, body, headers=ADMIN if headers is None else headers)


def cached(server: LiveServer, headers: dict[str, str], question: str = "Well?", **fields: Any) -> int:
    body = {"messages": [SYSTEM, {"role": "user", "content": question}], **fields}
    answer = server.post(CHAT, body, headers=headers)
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_shared_template_serves_every_key_from_its_first_request(managed: LiveServer) -> None:
    made = post(managed, shared=True).json()
    assert made["ready"] and made["tokens"] - 16 < made["pinned_tokens"] == 16 * made["pages"] <= made["tokens"]
    for key in (FIRST, SECOND, ADMIN):
        assert cached(managed, key) == made["pinned_tokens"]
    shown = managed.http.get(f"{TEMPLATES}/t", headers=ADMIN).json()
    assert shown["hits"] == 3 and shown["shared"]
    managed.wait_until(lambda: managed.replica.gauges.memory.pinned == made["pages"], "the gauge of pinned pages")


def test_what_follows_a_shared_template_is_not_shared(managed: LiveServer) -> None:
    pinned = post(managed, shared=True).json()["pinned_tokens"]
    secret = "a secret of the first key " * 4
    assert cached(managed, FIRST, secret) == pinned
    assert cached(managed, FIRST, secret) > pinned
    assert cached(managed, SECOND, secret) == pinned


def test_an_unshared_template_is_its_own_keys(managed: LiveServer) -> None:
    pinned = post(managed).json()["pinned_tokens"]
    assert cached(managed, ADMIN) == pinned
    assert cached(managed, FIRST) == 0


def test_only_administrators_manage_templates(managed: LiveServer) -> None:
    for answer in (
        post(managed, FIRST),
        managed.http.get(TEMPLATES, headers=FIRST),
        managed.http.get(f"{TEMPLATES}/t", headers=FIRST),
        managed.http.delete(f"{TEMPLATES}/t", headers=FIRST),
    ):
        assert refusal(answer, 403)["code"] == "permission_denied"
    refusal(post(managed, {}), 401)


def test_an_open_server_has_no_administrator_unless_one_is_named(server: LiveServer) -> None:
    refusal(post(server, {"authorization": "Bearer anything"}), 403)
    with live_server(Setup(http={"admin_keys": ("admin",)})) as open_server:
        refusal(post(open_server, {}), 403)
        pinned = post(open_server).json()["pinned_tokens"]
        # All callers of an open server are one.
        assert cached(open_server, {}) == cached(open_server, FIRST) == pinned > 0
        open_server.http.delete(f"{TEMPLATES}/t", headers=ADMIN)


def test_refusals_name_what_is_wrong(managed: LiveServer) -> None:
    assert refusal(post(managed, name=None), 400)["param"] == "name"
    assert refusal(post(managed, messages=[]), 400)["param"] == "messages"
    post(managed)
    assert "already" in refusal(post(managed), 409)["message"]
    refusal(managed.http.get(f"{TEMPLATES}/other", headers=ADMIN), 404)
    refusal(managed.http.delete(f"{TEMPLATES}/other", headers=ADMIN), 404)


def test_the_limit_of_pinned_pages_is_a_clear_refusal() -> None:
    setup = Setup(http={"admin_keys": ("admin",)}, scheduler=SchedulerConfig(max_pinned_share=0.01))
    with live_server(setup) as small:
        message = refusal(post(small), 409)["message"]
        assert "at most 5 pages for templates" in message
        assert cached(small, {}) == 0


def test_a_window_shrinks_by_what_is_pinned_and_not_used() -> None:
    """A prompt that would fit an empty pool and not beside the template is refused, and never waits for ever."""
    from twinpath.engine.scripted import ScriptedShape

    shape = ScriptedShape(num_pages=32, max_model_len=512)
    with live_server(Setup(http={"admin_keys": ("admin",)}, shape=shape)) as small:
        pages = post(small).json()["pages"]
        long = "x" * (512 - 16 * pages + 8)
        error = refusal(small.complete(long, max_tokens=4), 400)
        assert error["code"] == "context_length_exceeded"
        assert small.http.delete(f"{TEMPLATES}/t", headers=ADMIN).status_code == 200
        assert small.complete(long, max_tokens=4).status_code == 200


@pytest.mark.parametrize("last", ["system", "user", "assistant"])
def test_what_is_kept_begins_every_conversation_that_begins_so(last: str) -> None:
    text = byte_model(4096)
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role=last, content="Yes.")]
    prompt = pinned_prompt(TemplateRequest(messages=messages), text, "t", "")
    turns: list[dict[str, Any]] = [{"role": one.role, "content": one.content} for one in messages]
    follower = "assistant" if last == "user" else "user"
    for content in ("anything", "1", "\n", "\N{SNOWMAN}"):
        ids = text.encode_chat([*turns, {"role": follower, "content": content}])
        assert ids[: len(prompt.prompt_ids)] == prompt.prompt_ids
    assert b"Yes." in bytes(token for token in prompt.prompt_ids if token < 256)


def test_files_are_read_at_start(tmp_path: Any) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({"messages": [SYSTEM], "shared": True}))
    [prompt] = read_pinned((str(path),), byte_model(4096), has_keys=True)
    assert prompt.name == "agent" and prompt.shared and len(prompt.prompt_ids) > 100


@pytest.mark.parametrize(
    ("content", "has_keys", "what"),
    [
        (None, False, "No such file"),
        ("{", False, "not valid JSON"),
        ('{"messages": []}', False, "messages"),
        (json.dumps({"messages": [SYSTEM]}), True, '"shared": true'),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(tmp_path: Any, content: str | None, has_keys: bool, what: str) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as refused:
        read_pinned((str(path),), byte_model(4096), has_keys=has_keys)
    message = str(refused.value)
    assert "bad.json" in message and what in message and "\n" not in message
