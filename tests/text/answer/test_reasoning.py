"""Reasoning before an answer, split in any way, and calls after it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpath.text.answer import REASONING_FORMATS, TOOL_FORMATS, AnswerFormat, AnswerParser, Message, MessageCall

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parser(name: str = "think", *, is_open: bool = False) -> AnswerParser:
    form = AnswerFormat(TOOL_FORMATS["hermes"], REASONING_FORMATS[name])
    return form.parser(tools={"f": {}}, reasoning_open=is_open, new_id=lambda: "id")


def read(text: str, name: str = "think", *, is_open: bool = False) -> Message:
    """Read in one piece, which must equal any other cutting."""
    whole, single = (Message.of(_feed(parser(name, is_open=is_open), pieces)) for pieces in ([text], list(text)))
    assert whole == single
    return whole


def _feed(feeder, pieces):  # type: ignore[no-untyped-def]
    return [part for piece in pieces for part in feeder.push(piece)] + feeder.finish()


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_reasoning_then_content_then_a_call(name: str) -> None:
    markers = REASONING_FORMATS[name]
    text = f"{markers.begin}\nI think.\n\nTwice.\n{markers.end}\n\nHello.\n{CALL}"
    call = MessageCall("id", "f", '{"a": 1}')
    assert read(text, name) == Message("Hello.", "I think.\n\nTwice.", (call,))
    assert read(text.removeprefix(markers.begin), name, is_open=True) == Message(
        "Hello.", "I think.\n\nTwice.", (call,)
    )


def test_a_call_inside_reasoning_is_thought_only() -> None:
    assert read(f"<think>{CALL}</think>done") == Message("done", CALL, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<think>\n\n</think>\n\nHi", Message("Hi", "", ())),
        ("<think>cut off </thi", Message("", "cut off </thi", ())),
        (" \n<think>x</think>", Message("", "x", ())),
        ("No. <think>x</think>", Message("No. <think>x</think>", "", ())),
        ("<thin", Message("<thin", "", ())),
        (" \n", Message(" \n", "", ())),
        ("", Message("", "", ())),
    ],
)
def test_where_reasoning_begins_and_ends(text: str, message: Message) -> None:
    assert read(text) == message


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "a", " ", "\n", CALL]), max_size=8), st.booleans())
def test_cutting_changes_nothing(scraps: list[str], is_open: bool) -> None:
    text = "".join(scraps)
    whole = read(text, is_open=is_open)
    assert Message.of(_feed(parser(is_open=is_open), scraps)) == whole


def test_reasoning_goes_out_as_it_comes_and_says_when_it_is_over() -> None:
    feeder = parser()
    told = []
    for piece in ("<thi", "nk>", "a", "b ", "c", "</think", ">", "d"):
        parts = feeder.push(piece)
        told.append((Message.of(parts).reasoning, Message.of(parts).content, feeder.in_reasoning))
    assert told == [
        ("", "", False),
        ("", "", True),
        ("a", "", True),
        ("b", "", True),
        (" c", "", True),
        ("", "", True),
        ("", "", False),
        ("", "d", False),
    ]
    assert list(itertools.chain(feeder.finish())) == []
