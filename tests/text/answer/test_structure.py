"""The description that grammars are built from: what it spells, the format's own parser reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twinpath.errors import UserError
from twinpath.text.answer import REASONING_FORMATS, TOOL_FORMATS, AnswerFormat, Message, answer_format
from twinpath.text.answer.structure import ANY_OBJECT

TOOLS: list[dict[str, Any]] = [
    {"name": "get.weather-now", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "ping"},
]
ARGUMENTS = ('{"city": "São } </tool_call>"}', "{}", '{"city":"x"}')


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("num_calls", [1, 3])
def test_the_parser_reads_what_the_structure_spells(name: str, num_calls: int) -> None:
    structure = TOOL_FORMATS[name].shape.structure(TOOLS)
    first, second = structure.branches
    used = [first, second, first][:num_calls]
    calls = [branch.begin + arguments + branch.end for branch, arguments in zip(used, ARGUMENTS, strict=False)]
    text = structure.opening + structure.separator.join(calls) + structure.closing
    assert text.startswith(structure.trigger) and structure.trigger
    parser = AnswerFormat(TOOL_FORMATS[name], None).parser(tools={tool["name"]: {} for tool in TOOLS})
    message = Message.of([part for character in text for part in parser.push(character)] + parser.finish())
    assert (message.content, message.reasoning) == ("", "")
    expected = list(zip([branch.name for branch in used], ARGUMENTS, strict=False))
    assert [(call.name, call.arguments) for call in message.calls] == expected
    assert first.schema == TOOLS[0]["parameters"] and second.schema == ANY_OBJECT


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_literals_around_arguments_make_json_where_they_are_json(name: str) -> None:
    shape = TOOL_FORMATS[name].shape
    [branch] = shape.structure(TOOLS[:1]).branches
    if branch.begin.startswith("{"):
        call = json.loads(branch.begin + "{}" + branch.end)
        assert call["name"] == "get.weather-now"


#: Tell-tale pieces of the families' chat templates, quoted from them.
TEMPLATES = {
    "hermes": '{{- \'\\n<tool_call>\\n{"name": "\' }}{{- tool_call.name }}',
    "llama3_json": '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument name\' }}',
    "pythonic": "should be in the format of [func_name1(params_name1=params_value1, params_name2=params_value2...)]",
    "mistral": "{{- '[TOOL_CALLS] [' }}",
    "mistral_v11": "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "deepseek_v3": "{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n' + '```json'}}",  # noqa: RUF001
    "deepseek_v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}",  # noqa: RUF001
    "kimi_k2": "<|tool_calls_section_begin|>{%- for call in calls -%}<|tool_call_begin|>{{ call['id'] }}",
    "tool_call_list": "{{ '<|tool_call|>' + message['tool_calls'] | tojson + '<|/tool_call|>' }}",
    "qwen3_xml": "{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}",
    "glm45": "<tool_call>{{ tc.name }}\n<arg_key>{{ k }}</arg_key>",
    "smollm2": "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face' }}",
    "json": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


def test_every_format_is_chosen_by_some_template() -> None:
    assert {answer_format(source).tools.name for source in TEMPLATES.values()} == set(TOOL_FORMATS)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_template_tells_the_format(name: str) -> None:
    found = answer_format(TEMPLATES[name])
    assert found.tools.name == name and found.reasoning is None


def test_reasoning_is_seen_in_the_template_and_settings_win() -> None:
    assert answer_format("{%- if '</think>' in content %}").reasoning == REASONING_FORMATS["think"]
    assert answer_format("[THINK]..[/THINK]").reasoning == REASONING_FORMATS["mistral"]
    assert answer_format("</think>", reasoning="none").reasoning is None
    chosen = answer_format(None, tools="kimi_k2", reasoning="seed")
    assert (chosen.tools.name, chosen.reasoning) == ("kimi_k2", REASONING_FORMATS["seed"])


@pytest.mark.parametrize("setting", ["tools", "reasoning"])
def test_an_unknown_name_is_an_error_that_lists_the_known(setting: str) -> None:
    with pytest.raises(UserError, match=r"nope.*known: auto, (hermes|think)"):
        answer_format(None, **{setting: "nope"})
