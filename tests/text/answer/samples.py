"""Answers in every format, as their models write them, with what they mean.

Sources: Qwen 2.5 and 3 chat templates (hermes); SmolLM2-1.7B-Instruct's model card (smollm2); Llama 3.1 prompt format
page (llama3_json) and Llama 3.2's and 4's (pythonic); mistral-common's instruct tokenisers v3 and v11 (mistral);
DeepSeek V3-0324, R1-0528 and V3.1 chat templates (deepseek); Qwen3-Coder's (qwen3_xml) and GLM-4.5's (glm45); Kimi K2's
tool_call_guidance (kimi_k2); Phi-4-mini's chat template (tool_call_list).
"""
# ruff: noqa: RUF001  (DeepSeek spells its tokens with wide bars)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twinpath.text.answer import Message, MessageCall

_TEXT = {"type": "string"}
TOOLS: dict[str, dict[str, Any]] = {
    "sum": {"type": "object", "properties": {"n1": {"type": "integer"}}},
    "file_write": {"properties": {"path": _TEXT, "text": _TEXT, "mode": {"enum": ["1", "2"]}}},
    "get.weather-now": {},
}


@dataclass(frozen=True)
class Sample:
    """One answer: its format, its text, the content and the calls in it."""

    format: str
    text: str
    content: str
    calls: tuple[tuple[str, str], ...]

    def message(self) -> Message:
        calls = (MessageCall(f"id{index}", *call) for index, call in enumerate(self.calls))
        return Message(self.content, "", tuple(calls))


_SUM = ("sum", '{"n1": 2, "n2": 2}')
_WRITE = ("file_write", '{"path": "C:\\\\Users\\\\é", "text": "a } </tool_call> \\" ]"}')
_A = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
_B = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_K = "<|tool_calls_section_begin|>"

SAMPLES = (
    Sample("hermes", "Just text with <b> and <tool", "Just text with <b> and <tool", ()),
    Sample("hermes", '<tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>', "", (_SUM,)),
    Sample(
        "hermes",
        'I add.\n\n<tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>\n<tool_call>\n'
        '{"arguments": ' + _WRITE[1] + ', "name": "file_write"}\n</tool_call>\n',
        "I add.",
        (_SUM, _WRITE),
    ),
    Sample("hermes", '<tool_call>{"name": "sum"}</tool_call> done', "done", (("sum", "{}"),)),
    Sample("hermes", '<tool_call>{"name": "sum", "arguments": null}</tool_call>', "", (("sum", "{}"),)),
    Sample(
        "hermes", '<tool_call>{"name": "sum", "arguments": "{\\"n1\\": 1}"}</tool_call>', "", (("sum", '{"n1": 1}'),)
    ),
    # One brace too few, one too many, none at all.
    Sample("hermes", '<tool_call>{"name": "sum", "arguments": {"n1": 1}</tool_call>x', "x", (("sum", '{"n1": 1}'),)),
    Sample("hermes", '<tool_call>{"name": "sum", "arguments": {"n1": 1}}}\n</tool_call>', "", (("sum", '{"n1": 1}'),)),
    Sample("hermes", '<tool_call>{"name": "sum", "arguments": {"n1": 1', "", (("sum", '{"n1": 1'),)),
    Sample("hermes", '<tool_call>{"name": "sum", "arguments": {}} and so on', "and so on", (("sum", "{}"),)),
    Sample("hermes", "A <tool_call>is a tag</tool_call> B", "A <tool_call>is a tag</tool_call> B", ()),
    Sample("hermes", '{"name": "sum", "arguments": {}}', '{"name": "sum", "arguments": {}}', ()),
    Sample(
        "smollm2",
        '<tool_call>[\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}},\n{"name": "sum", "arguments": {}}\n]'
        "</tool_call>",
        "",
        (_SUM, ("sum", "{}")),
    ),
    Sample("smollm2", "<tool_call>[]</tool_call>", "", ()),
    Sample("smollm2", '[{"name": "sum", "arguments": {"n1": 2, "n2": 2}}]', "", (_SUM,)),
    Sample("llama3_json", '{"name": "sum", "parameters": {"n1": 2, "n2": 2}}', "", (_SUM,)),
    Sample(
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "sum", "parameters": {"n1": 2, "n2": 2}}; '
        '{"name": "sum", "parameters": {}}',
        "",
        (_SUM, ("sum", "{}")),
    ),
    Sample("llama3_json", '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', ()),
    Sample("llama3_json", ' {"answer": [1, 2]}\n', ' {"answer": [1, 2]}\n', ()),
    Sample("llama3_json", "[1, 2]", "[1, 2]", ()),
    Sample("pythonic", "[sum(n1=2, n2=2)]", "", (_SUM,)),
    Sample(
        "pythonic",
        "<|python_start|>[sum(), file_write(path='C:\\\\x\\'\\n', ok=True, no=[None, -1.5e3, (1,)], m={'a': \"b\"},)]"
        "<|python_end|>",
        "",
        (
            ("sum", "{}"),
            ("file_write", '{"path": "C:\\\\x\'\\n", "ok": true, "no": [null, -1.5e3, [1]], "m": {"a": "b"}}'),
        ),
    ),
    Sample("pythonic", "[other(n1=2)]", "[other(n1=2)]", ()),
    Sample("pythonic", "[sum", "[sum", ()),
    Sample("pythonic", '{"name": "sum", "parameters": {"n1": 2, "n2": 2}}', "", (_SUM,)),
    Sample(
        "mistral",
        '[TOOL_CALLS] [{"name": "sum", "arguments": {"n1": 2, "n2": 2}}, {"name": "sum", "arguments": {"n1": [1]}}]',
        "",
        (_SUM, ("sum", '{"n1": [1]}')),
    ),
    Sample(
        "mistral_v11",
        'Sure.[TOOL_CALLS]sum[ARGS]{"n1": 2, "n2": 2}[TOOL_CALLS]get.weather-now[CALL_ID]abcDEF123[ARGS]{"c": "Z"}',
        "Sure.",
        (_SUM, ("get.weather-now", '{"c": "Z"}')),
    ),
    Sample("mistral_v11", "[TOOL_CALLS] none", "[TOOL_CALLS] none", ()),
    Sample("deepseek_v3", f'{_A}function<｜tool▁sep｜>sum\n```json\n{{"n1": 2, "n2": 2}}\n```{_B}', "", (_SUM,)),
    Sample(
        "deepseek_v31",
        f'Now.\n\n{_A}sum<｜tool▁sep｜>{{"n1": 2, "n2": 2}}<｜tool▁call▁end｜>\n'
        f"<｜tool▁call▁begin｜>sum<｜tool▁sep｜>{{}}{_B}",
        "Now.",
        (_SUM, ("sum", "{}")),
    ),
    Sample(
        "kimi_k2",
        f'I look.{_K}<|tool_call_begin|>functions.sum:0<|tool_call_argument_begin|>{{"n1": 2, "n2": 2}}'
        "<|tool_call_end|>\n<|tool_call_begin|>functions.get.weather-now:1 <|tool_call_argument_begin|> {}\n"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "I look.",
        (_SUM, ("get.weather-now", "{}")),
    ),
    Sample(
        "qwen3_xml",
        'I write.\n<tool_call>\n<function=file_write>\n<parameter=path>\nC:\\x "é"\n</parameter>\n<parameter=text>\n\n'
        "  if a < b:\n    </par>\n\n</parameter>\n<parameter=mode>\n1\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=sum>\n<parameter=n1>\n2\n</parameter>\n<parameter=n2>\n[1, {}]\n</parameter>\n"
        "<parameter=n3>\nTrue\n</parameter>\n<parameter=n4>\n01 a\n</parameter>\n</function>\n</tool_call>",
        "I write.",
        (
            ("file_write", '{"path": "C:\\\\x \\"é\\"", "text": "\\n  if a < b:\\n    </par>\\n", "mode": "1"}'),
            ("sum", '{"n1": 2, "n2": [1, {}], "n3": true, "n4": "01 a"}'),
        ),
    ),
    Sample("qwen3_xml", '<tool_call>\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n</tool_call>', "", (_SUM,)),
    Sample("qwen3_xml", "<tool_call><function=sum></function></tool_call>", "", (("sum", "{}"),)),
    Sample("qwen3_xml", "<tool_call><function=file_write><parameter=path>\na", "", (("file_write", '{"path": "a'),)),
    Sample(
        "glm45",
        "<tool_call>file_write\n<arg_key>path</arg_key>\n<arg_value>a\n</arg_value>\n<arg_key>n</arg_key>\n"
        "<arg_value>null</arg_value>\n</tool_call>",
        "",
        (("file_write", '{"path": "a\\n", "n": null}'),),
    ),
    Sample("glm45", '<tool_call>{"name": "sum", "arguments": {"n1": 2, "n2": 2}}</tool_call>', "", (_SUM,)),
    Sample(
        "tool_call_list",
        '<|tool_call|>[{"name": "sum", "arguments": {"n1": 2, "n2": 2}}]<|/tool_call|>',
        "",
        (_SUM,),
    ),
    Sample("json", '```json\n{"name": "sum", "arguments": {"n1": 2, "n2": 2}}\n```\nDone.', "Done.", (_SUM,)),
    Sample(
        "json",
        '{"type": "function", "function": {"name": "sum", "arguments": "{\\"t\\": \\"\\\\ud83d\\\\ude00\\u00e9\\"}"}}',
        "",
        (("sum", '{"t": "\\ud83d\\ude00é"}'),),
    ),
    Sample("json", '```python\nprint({"name": 1})\n```', '```python\nprint({"name": 1})\n```', ()),
)
