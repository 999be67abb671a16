"""Bodies with very many token ids decode to the same fields as ever, piece by piece."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import msgspec
import pytest

from twinpath.api import large_body
from twinpath.api.large_body import decode_large
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest
from twinpath.errors import InvalidRequest

DECODER = msgspec.json.Decoder(CompletionRequest)
IDS = [*range(0, 70_000, 3), 0, 7]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_body, "_PIECE_BYTES", 97)
    monkeypatch.setattr(large_body, "_PAUSE_S", 0.0)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": IDS, "max_tokens": 3},
        {"max_tokens": 3, "prompt": [IDS, [1], IDS], "model": "m"},
        {"prompt": [[5]], "user": 'says "prompt": [1, 2]'},
        {"user": 'says "prompt": [1, 2]', "prompt": [5, 6]},
        {"metadata": {"prompt": IDS}, "prompt": "text"},
        {"metadata": {"prompt": [[1], [2]]}, "prompt": [3, 4]},
        {"prompt": "text " * 1000},
        {"prompt": ["a", "b"]},
        {"prompt": [8.0, 9]},
        {"prompt": [[1, 2], []]},
    ],
)
@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_the_same_fields_as_in_one_go(body: dict[str, Any], style: dict[str, Any]) -> None:
    text = json.dumps(body, **style).encode()
    assert msgspec.structs.asdict(decode_large(text, DECODER)) == msgspec.structs.asdict(DECODER.decode(text))


@pytest.mark.parametrize(
    "text", ['{"prompt": [1, "a", 2]}', '{"prompt": [1, -2]}', '{"prompt": [1, 2.5]}', '{"prompt": [1 2]}']
)
def test_what_is_no_token_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_large(text.encode(), DECODER)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    "text", ['{"prompt": [1, 2', '{"prompt": [[1, 2]', '{"prompt": [[1], 2]}x', '{"max_tokens": [1, 2]}']
)
def test_broken_json_is_the_decoders_to_refuse(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_large(text.encode(), DECODER)


def test_more_ids_than_any_window_end_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_body, "MAX_PROMPT_IDS", 100)
    with pytest.raises(InvalidRequest, match="more than 100 token ids"):
        decode_large(json.dumps({"prompt": [list(range(60)), list(range(60))]}).encode(), DECODER)


def test_other_endpoints_have_no_prompt() -> None:
    text = json.dumps({"messages": [{"role": "user", "content": '"prompt": [1, 2]'}]}).encode()
    decoder = msgspec.json.Decoder(ChatCompletionRequest)
    assert decode_large(text, decoder).messages[0].content == '"prompt": [1, 2]'


def test_a_chat_with_a_prompt_field_is_left_to_its_decoder() -> None:
    text = json.dumps({"prompt": [1, 2], "messages": [{"role": "user", "content": "x"}]}).encode()
    decoder = msgspec.json.Decoder(ChatCompletionRequest)
    assert decode_large(text, decoder).messages[0].content == "x"


def test_other_threads_run_between_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: a thread that wants the lock gets it many times during one body."""
    monkeypatch.setattr(large_body, "_PIECE_BYTES", 10_000)
    monkeypatch.setattr(large_body, "_PAUSE_S", 1e-4)
    done, num_turns = threading.Event(), 0
    body = b'{"prompt": [' + b"1234," * 400_000 + b"1]}"

    def decode() -> None:
        decode_large(body, DECODER)
        done.set()

    thread = threading.Thread(target=decode)
    thread.start()
    while not done.is_set():
        time.sleep(0)
        num_turns += 1
    thread.join()
    assert num_turns >= 50
