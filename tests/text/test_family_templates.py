"""Tool conversations in the templates of the families: told, replayed, and read back by the family's own parser."""

from __future__ import annotations

from typing import Any

import pytest

from text.family_templates import FAMILIES
from twinpath.text.answer import Message
from twinpath.text.byte_model import byte_model
from twinpath.text.text_model import TextModel

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"About {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("file_read", "file_write")
]
QUESTION = {"role": "user", "content": "Copy it."}


def model(family: str) -> TextModel:
    return byte_model(chat_template=FAMILIES[family][0])


def calls(*functions: tuple[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    made = [
        {"id": f"call_{index:024}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(functions)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **more}


def result(index: int, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{index:024}", "content": content}


ONE = calls(("file_read", '{"path": "C:\\\\Users\\\\é </x>"}'))
TWO = calls(("file_read", '{"path": "a"}'), ("file_write", '{"path": "b", "n": [1, null]}'))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_is_known_by_its_template(family: str) -> None:
    assert model(family).answers.tools.name == FAMILIES[family][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_told_of_every_tool_once(family: str) -> None:
    system = {"role": "system", "content": "Be terse."}
    for messages in ([QUESTION], [system, QUESTION]):
        text = model(family).render_chat(messages, tools=TOOLS)
        for tool in TOOLS:
            assert text.count(tool["function"]["description"]) == 1
        assert "Copy it." in text
        assert ("Be terse." in text) == (len(messages) > 1)
    assert "About" not in model(family).render_chat([QUESTION])


#: Llama 3.1 takes one call per turn.
ROUND_TRIPS = [(family, turn) for family in FAMILIES for turn in (ONE, TWO) if (family, turn) != ("llama31", TWO)]


@pytest.mark.parametrize(("family", "turn"), ROUND_TRIPS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_parser_reads_what_the_template_writes(family: str, turn: dict[str, Any]) -> None:
    """So a model that writes what it has read is understood."""
    text = model(family)
    before = text.render_chat([QUESTION], tools=TOOLS, template_kwargs={"add_generation_prompt": False})
    after = text.render_chat([QUESTION, turn], tools=TOOLS, template_kwargs={"add_generation_prompt": False})
    assert after.startswith(before)
    prompt = text.render_chat([QUESTION], tools=TOOLS)
    opening = prompt[len(before) :].removesuffix("<think>\n").removesuffix("</think>")
    answer = after[len(before) :].removeprefix(opening).removesuffix(FAMILIES[family][2])
    parser = text.answers.parser(tools={"file_read": {}, "file_write": {}})
    message = Message.of([part for character in answer for part in parser.push(character)] + parser.finish())
    assert message.content == "" and message.reasoning == ""
    expected = [(call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]]
    assert [(call.name, call.arguments) for call in message.calls] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_histories_are_rendered_in_full(family: str) -> None:
    """What agents replay: null and list contents, broken arguments, results in another order, no ids, late systems."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "Be terse."}]},
        QUESTION,
        TWO | {"reasoning_content": "Two steps."},
        result(1, [{"type": "text", "text": "written-b"}]),
        result(0, "read-a"),
        {"role": "developer", "content": "Mind the quota."},
        calls(("file_write", "{broken \\U"), content=[]),
        {"role": "tool", "tool_call_id": None, "content": "failed-c"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "file_read", "arguments": None}}]},
        {"role": "function", "name": "file_read", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "And now?"},
    ]
    text = model(family).render_chat(history, tools=TOOLS)
    for said in ("Be terse.", "Copy it.", "written-b", "read-a", "Mind the quota.", "broken", "failed-c", "And now?"):
        assert said in text, said
    replayed = text[text.index("Copy it.") :]
    assert "None" not in replayed and '"arguments": null' not in replayed


def test_results_follow_their_calls_where_turns_hold_one_call() -> None:
    text = model("llama31").render_chat([QUESTION, TWO, result(1, "second"), result(0, "first"), result(0, "extra")])
    order = [text.index(said) for said in ('"path": "a"', "first", '"path": "b"', "second", "extra")]
    assert order == sorted(order)


def test_kimi_gets_the_ids_it_would_write() -> None:
    history = [QUESTION, ONE, result(0, "r"), TWO, result(0, "s"), result(1, "t")]
    text = model("kimi").render_chat(history)
    ids = ("functions.file_read:0", "functions.file_read:1", "functions.file_write:2")
    assert [text.count(f"<|tool_call_begin|>{name}<") for name in ids] == [1, 1, 1]
    returns = [line.partition("## Return of ")[2] for line in text.splitlines() if "## Return of" in line]
    assert returns == list(ids)


def test_reasoning_that_the_prompt_opens_is_seen() -> None:
    for family, opens in (("deepseek3", True), ("deepseek31", False), ("qwen3", False), ("phi4", False)):
        text = model(family)
        assert text.opens_reasoning(text.encode_chat([QUESTION])) is opens
    qwen = model("qwen3")
    ids = qwen.encode_chat([QUESTION], template_kwargs={"enable_thinking": False})
    assert not qwen.opens_reasoning(ids)


def test_qwen_replays_reasoning() -> None:
    text = model("qwen3").render_chat([QUESTION, ONE | {"reasoning": "I read first."}, result(0, "r")], tools=TOOLS)
    assert "<think>\nI read first.\n</think>" in text


def test_smollm2_reads_results_from_the_user() -> None:
    text = model("smollm2").render_chat([QUESTION, TWO, result(0, "r"), result(1, "s")], tools=TOOLS)
    assert "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>" in text and "<|im_start|>tool" not in text
