"""Tokens to parts: however the engine groups tokens into events, the answer, its end and its counts are the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from twinpath.api.transcript import Transcript
from twinpath.text import StopSet
from twinpath.text.answer import REASONING_FORMATS, TOOL_FORMATS, AnswerFormat, Message
from twinpath.text.byte_model import END_ID, byte_model

CALL = '<tool_call>\n{"name": "f", "arguments": {"é": "x y"}}\n</tool_call>'
TEXT = f"<think>Two 😀 words.</think>\n\nI look.\n{CALL}\n{CALL} done."
MODEL = byte_model()
ANSWERS = AnswerFormat(TOOL_FORMATS["hermes"], REASONING_FORMATS["think"])


@dataclass(frozen=True)
class Outcome:
    message: Message
    text: str
    num_used: int
    num_reasoning: int
    num_calls: int
    matched_stop: str | None


def run(token_ids: list[int], cuts: list[int], stops: list[str], *, parsed: bool, max_calls: int | None) -> Outcome:
    ids = (f"id{index}" for index in itertools.count())
    parser = ANSWERS.parser(tools={"f": {}}, max_calls=max_calls, new_id=lambda: next(ids)) if parsed else None
    transcript = Transcript(MODEL.detokenizer(), StopSet(stops), parser, end_ids=(END_ID,), min_tokens=0)
    parts, texts, num_used, ended = [], [], 0, False
    for start, end in itertools.pairwise([0, *cuts, len(token_ids)]):
        passage = transcript.add(token_ids[start:end], num_used)
        parts += passage.parts
        texts.append(passage.text)
        num_used += passage.num_used
        if ended := passage.ended:
            break
    if not ended:
        last = transcript.finish()
        parts += last.parts
        texts.append(last.text)
    return Outcome(
        Message.of(parts),
        "".join(texts),
        num_used,
        transcript.num_reasoning,
        transcript.num_calls,
        transcript.matched_stop,
    )


@given(
    st.data(),
    st.sampled_from([[], ["look"], ["name", "x y"], ["</think>"], ["done."]]),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_events_of_any_length_give_the_same_answer(
    data: st.DataObject, stops: list[str], parsed: bool, max_calls: int | None
) -> None:
    token_ids = [*TEXT.encode(), END_ID]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(token_ids) - 1), max_size=40)))
    expected = run(token_ids, list(range(1, len(token_ids))), stops, parsed=parsed, max_calls=max_calls)
    assert run(token_ids, cuts, stops, parsed=parsed, max_calls=max_calls) == expected


def test_what_is_counted() -> None:
    token_ids = [*TEXT.encode(), END_ID]
    whole = run(token_ids, [], [], parsed=True, max_calls=None)
    assert (whole.message.content, whole.message.reasoning) == ("I look.\n\ndone.", "Two 😀 words.")
    assert [call.arguments for call in whole.message.calls] == ['{"é": "x y"}'] * 2
    assert whole.num_used == len(token_ids)
    # From the byte that completes the begin mark to the one that completes the end mark.
    assert whole.num_reasoning == len(">Two 😀 words.</think>".encode())
    one = run(token_ids, [], [], parsed=True, max_calls=1)
    assert one.num_calls == 1 and one.num_used == len(TEXT.partition("\n</tool_call>")[0].encode())
    plain = run(token_ids, [], [], parsed=False, max_calls=None)
    assert plain.message.content == plain.text == TEXT
