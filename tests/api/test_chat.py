"""Chat answers, streamed and whole: text, stops, finish reasons, usage, log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from api.live_server import LiveServer, Setup, live_server
from api.streams import both, parse, stream
from twinpath.engine.scripted import Script, ScriptedShape


def script(data: bytes, *chunks: int, **cues: Any) -> Script:
    """Bytes as tokens, so many per step."""
    return Script(bytes_hex=data.hex(), chunks=chunks or (1,), **cues)


def test_streamed_and_whole_answers_agree(server: LiveServer) -> None:
    streamed, whole = both(server, "What is the capital of France?")
    assert streamed.text == "Paris is the capital."
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    # 21 bytes and the end token.
    assert whole["usage"]["completion_tokens"] == 22
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + 22


def test_b1_01_stop_string_across_tokens() -> None:
    answer = script(b"IJKLMNOPQ R" + b"x" * 3000, 3, 2, 1, 2, 3, step_ms=2)
    with live_server(Setup(default=answer)) as server:
        streamed, whole = both(server, "go", stop=["LMNOPQ"])
        assert streamed.text == "IJK"
        assert streamed.finish_reasons == ["stop"]
        # I J K | L M | N | O P | Q: the tokens up to the one that completed the match.
        assert whole["usage"]["completion_tokens"] == 9
        server.wait_until(server.is_idle, "the engine stopped at the stop string")
        assert server.engine.num_tokens < 200


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("b", "a", "stop"),
        (["zzz", "bcd", "cd"], "a", "stop"),
        (["cde", "bcx"], "ab", "stop"),
        (["a"], "", "stop"),
        (["efz"], "abcdef", "stop"),
        ([], "abcdef", "stop"),
        (["q", "r", "s", "t", "u", "v"], "abcdef", "stop"),
    ],
)
def test_stop_strings_cut_where_they_begin(server: LiveServer, stop: Any, text: str, reason: str) -> None:
    streamed, _ = both(server, "[abcdef]", stop=stop)
    assert (streamed.text, streamed.finish_reasons) == (text, [reason])


def test_held_back_text_is_sent_when_the_cap_ends_the_answer(server: LiveServer) -> None:
    streamed, _ = both(server, "hi", stop=["Paris is not"], max_tokens=8)
    assert (streamed.text, streamed.finish_reasons) == ("Paris is", ["length"])


def test_min_tokens_lets_an_early_stop_string_pass(server: LiveServer) -> None:
    streamed, _ = both(server, "[dots]", stop=["."], min_tokens=5)
    assert streamed.text == "a.b.c"


def test_b1_02_multibyte_characters_are_never_split() -> None:
    family = "👨‍👩‍👧‍👦"
    text = f"😀中{family}é"
    encoded = text.encode()
    # Emoji 2 + 2, CJK 1 + 2, the family (25 bytes) over 6 tokens' worth of steps, then the rest.
    answer = script(encoded, 2, 2, 1, 2, 5, 4, 4, 4, 4, 4, 2)
    with live_server(Setup(default=answer)) as server:
        streamed, whole = both(server, "go")
        assert whole["choices"][0]["message"]["content"] == text
        assert "\ufffd" not in "".join(streamed.deltas)
        # A character comes with the step that completes it, not later.
        assert streamed.deltas[:2] == ["😀", "中"]
        assert streamed.deltas[-1] == "é"


def test_a_character_that_never_completes_is_dropped(server: LiveServer) -> None:
    streamed, _ = both(server, "[cut]")
    assert streamed.text == "ok"


def test_b1_03_spaces_and_newlines_survive_streaming(server: LiveServer) -> None:
    streamed, _ = both(server, "[spaces]")
    assert streamed.text == " leading\n\n    four\tx  y \n"


def test_b1_12_large_cap_is_clamped_to_the_window() -> None:
    shape = ScriptedShape(max_model_len=400, max_step_tokens=400)
    with live_server(Setup(shape=shape, default=script(b"y" * 1000, 8))) as server:
        streamed, whole = both(server, "p" * 300, max_tokens=32000)
        assert streamed.finish_reasons == ["length"]
        usage = whole["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == 400


def test_max_completion_tokens_wins_over_max_tokens(server: LiveServer) -> None:
    answer = server.chat("[long]", max_tokens=50, max_completion_tokens=3).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0] | {"message": None} == {
        "index": 0,
        "message": None,
        "logprobs": None,
        "finish_reason": "length",
    }


def test_b1_24_usage_chunk_only_when_asked(server: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    plain = stream(server, "/v1/chat/completions", body)
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in plain.chunks)
    asked = stream(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    empty = [chunk for chunk in asked.chunks if not chunk["choices"]]
    assert empty == [asked.chunks[-1]]
    assert empty[0]["usage"]["completion_tokens"] == 22
    assert all(chunk["usage"] is None for chunk in asked.chunks[:-1])
    for streamed in (plain, asked):
        first = streamed.chunks[0]["choices"][0]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert streamed.finish_reasons == ["stop"]
        assert all(choice["delta"] is not None for choice in streamed.choices())
        assert streamed.done


def test_continuous_usage_counts_up(server: LiveServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    streamed = stream(server, "/v1/chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed.chunks if chunk.get("usage")]
    assert counts == sorted(counts)
    assert counts[0] == 1 and counts[-1] == 22


def test_logprobs_have_one_entry_per_token(server: LiveServer) -> None:
    streamed, whole = both(server, "hi", logprobs=True, top_logprobs=2)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
    # The scripted engine's formula for 'P' (80): -(1 + 80 % 7) / 8.
    assert entries[0]["token"] == "P"
    assert entries[0]["bytes"] == [80]
    assert entries[0]["logprob"] == pytest.approx(-0.5)
    assert [top["token"] for top in entries[0]["top_logprobs"]] == ["P", "Q"]
    assert len(streamed.logprobs()) == len(entries)


def test_logprobs_of_split_characters_join_by_their_bytes(server: LiveServer) -> None:
    streamed, whole = both(server, "[accent]", logprobs=True)
    entries = whole["choices"][0]["logprobs"]["content"][:-1]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "é!"
    assert entries[0]["token"] == "bytes:\\xc3"
    assert all(entry["top_logprobs"] == [] for entry in entries)
    assert streamed.text == "é!"


def test_logprobs_end_with_the_stop_string() -> None:
    with live_server(Setup(default=script(b"abcdef", 6))) as server:
        _, whole = both(server, "go", stop="cd", logprobs=True)
        assert whole["usage"]["completion_tokens"] == 4
        assert [entry["token"] for entry in whole["choices"][0]["logprobs"]["content"]] == ["a", "b", "c", "d"]


def test_sampling_defaults_come_from_the_model_and_requests_win() -> None:
    setup = Setup(default_sampling={"temperature": 0.0, "top_k": 7}, keep_plans=True)
    with live_server(setup) as server:
        server.chat("one")
        server.chat("two", temperature=0.5, top_k=-1, seed=-(2**63))
        inits = [init.sampling for plan in server.engine.plans for init in plan.inits]
        assert (inits[0].temperature, inits[0].top_k) == (0.0, 7)
        assert (inits[1].temperature, inits[1].top_k, inits[1].seed) == (0.5, 0, -(2**63))


def test_seeds_are_drawn_when_absent() -> None:
    with live_server(Setup(keep_plans=True)) as server:
        server.chat("one")
        server.chat("two")
        seeds = [init.sampling.seed for plan in server.engine.plans for init in plan.inits]
        assert len(set(seeds)) == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_an_engine_failure_before_the_first_token_is_an_http_error(server: LiveServer, streamed: bool) -> None:
    answer = server.chat("[fails at 0]", stream=streamed)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def test_an_engine_failure_in_a_started_stream_is_one_error_event(server: LiveServer) -> None:
    streamed = parse(server.chat("[fails at 2]", stream=True).text)
    assert streamed.text == "ab"
    assert streamed.finish_reasons == []
    assert streamed.error is not None and streamed.error["message"]
    assert not streamed.done
    assert [index for index, chunk in enumerate(streamed.chunks) if "error" in chunk] == [len(streamed.chunks) - 1]
    assert server.chat("[fails at 2]").status_code == 500
