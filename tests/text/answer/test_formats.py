"""Every format: what an answer means, that cutting does not change it, and that nothing waits without need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.answer.samples import SAMPLES, TOOLS, Sample
from twinpath.text.answer import (
    TOOL_FORMATS,
    AnswerFormat,
    AnswerParser,
    Message,
    Part,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

#: What damaged answers are made of.
_SCRAPS = sorted(
    {mark for form in TOOL_FORMATS.values() for mark in form.marks}
    | {
        '{"name": "sum"',
        '"arguments": ',
        '{"n1": "',
        "```json\n",
        "[sum(n1='",
        "}",
        "]",
        '"',
        "\\u00e9",
        "\\",
        ", ",
        " ",
    }
)


def parser(name: str, max_calls: int | None = None, tools: Mapping[str, Mapping[str, Any]] = TOOLS) -> AnswerParser:
    ids = (f"id{index}" for index in itertools.count())
    return AnswerFormat(TOOL_FORMATS[name], None).parser(tools=tools, max_calls=max_calls, new_id=lambda: next(ids))


def feed(parser: AnswerParser, pieces: Iterator[str] | list[str]) -> list[Part]:
    return [part for piece in pieces for part in parser.push(piece)] + parser.finish()


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one, so that only the order of what is said counts."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = TextDelta(last.text + part.text)
        elif isinstance(part, ToolArgumentsDelta) and isinstance(last, ToolArgumentsDelta):
            merged[-1] = ToolArgumentsDelta(part.index, last.text + part.text)
        else:
            merged.append(part)
    return merged


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format}-{sample.text[:30]!r}")
def test_whole_and_character_by_character(sample: Sample) -> None:
    whole = feed(parser(sample.format), [sample.text])
    assert Message.of(whole) == sample.message()
    assert joined(feed(parser(sample.format), list(sample.text))) == joined(whole)


@given(st.sampled_from(SAMPLES), st.data())
def test_any_cutting_gives_the_same_parts(sample: Sample, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sample.text) - 1))))
    pieces = [sample.text[start:end] for start, end in itertools.pairwise([0, *cuts, len(sample.text)])]
    assert joined(feed(parser(sample.format), pieces)) == joined(feed(parser(sample.format), [sample.text]))


@given(
    st.sampled_from(sorted(TOOL_FORMATS)),
    st.lists(st.one_of(st.sampled_from(_SCRAPS), st.text(max_size=3)), max_size=12),
    st.booleans(),
)
def test_damaged_answers_do_no_harm_however_they_are_cut(name: str, scraps: list[str], one_call: bool) -> None:
    text = "".join(scraps)
    limit = 1 if one_call else None
    whole = joined(feed(parser(name, limit), [text]))
    assert joined(feed(parser(name, limit), list(text))) == whole
    assert joined(feed(parser(name, limit), scraps)) == whole
    starts = [part.index for part in whole if isinstance(part, ToolCallStart)]
    ends = [part.index for part in whole if isinstance(part, ToolCallEnd)]
    assert starts == ends == list(range(len(starts)))
    assert not one_call or len(starts) <= 1


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@given(text=st.text(alphabet="ab {[\n\"'`", max_size=20))
def test_an_answer_without_calls_is_its_text(name: str, text: str) -> None:
    assert Message.of(feed(parser(name), list(text))) == Message(text, "", ())


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_arguments_are_passed_on_as_they_come(name: str) -> None:
    """Every character of a long string is out when it is in."""
    sample = next(
        s for s in SAMPLES if s.format == name and any(call == ("sum", '{"n1": 2, "n2": 2}') for call in s.calls)
    )
    head = sample.text[: sample.text.index("2")]
    feeder = parser(name)
    said = feeder.push(head)
    assert [part.name for part in said if isinstance(part, ToolCallStart)] == ["sum"]
    assert feeder.push('"') == [ToolArgumentsDelta(0, '"')]
    for character in "many words, { [ < in one string":
        assert feeder.push(character) == [ToolArgumentsDelta(0, character)]


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_content_is_passed_on_as_it_comes(name: str) -> None:
    feeder = parser(name)
    said = [feeder.push(word) for word in ("One", " two", " three,", " five")]
    assert [Message.of(parts).content for parts in said] == ["One", " two", " three,", " five"]


def test_no_more_calls_than_wanted() -> None:
    two = next(s for s in SAMPLES if s.format == "hermes" and len(s.calls) == 2)
    for pieces in ([two.text], list(two.text)):
        feeder = parser("hermes", max_calls=1)
        parts = feed(feeder, pieces)
        assert Message.of(parts).calls == two.message().calls[:1]
        assert feeder.done and isinstance(parts[-1], ToolCallEnd)


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_without_tools_markup_is_text(name: str) -> None:
    for sample in (sample for sample in SAMPLES if sample.format == name):
        assert Message.of(feed(parser(name, tools={}), list(sample.text))) == Message(sample.text, "", ())


def test_tagged_text_goes_out_as_it_comes_and_other_values_when_they_end() -> None:
    feeder = parser("qwen3_xml")
    feeder.push("<tool_call>\n<function=file_write>\n<parameter=path>\n")
    for character in 'a "b" < c':
        quoted = {'"': '\\"'}.get(character, character)
        # A tag may begin with it.
        assert character == "<" or feeder.push(character)[-1].text.endswith(quoted)  # type: ignore[union-attr]
    feeder.push("\n</parameter>\n<parameter=n1>\n")
    assert feeder.push("12") == []
    assert feeder.push("\n</parameter>") == [ToolArgumentsDelta(0, "12")]


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("scrap", ['{"function": ', "[", "{", '{"arguments": [', "[sum(a=[", "<tool_call>", "("])
def test_nesting_without_end_is_survived(name: str, scrap: str) -> None:
    for start in ("", TOOL_FORMATS[name].marks[0]):
        pieces = [start, *[scrap] * 1500]
        assert joined(feed(parser(name), ["".join(pieces)])) == joined(feed(parser(name), pieces))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.calls], ids=lambda s: f"{s.format}-{len(s.text)}")
def test_a_cut_anywhere_shows_no_markup_and_invents_nothing(sample: Sample) -> None:
    """What a limit leaves is the beginning of what the whole answer holds, at every character."""
    for length in range(len(sample.text)):
        cut = parser(sample.format)
        message = Message.of(cut.push(sample.text[:length]) + cut.finish(cut=True))
        assert sample.content.startswith(message.content.rstrip()), length
        assert len(message.calls) <= len(sample.calls)
        for call, (name, arguments) in zip(message.calls, sample.calls, strict=False):
            assert call.name == name and arguments.startswith(call.arguments), length
