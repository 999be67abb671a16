"""Message lists as clients send them, rendered by templates of every temperament."""

from __future__ import annotations

from typing import Any

import pytest

from twinpath.text.chat_template import ChatTemplate
from twinpath.text.messages import normalize
from twinpath.text.template_traits import TemplateTraits

#: Renders every role as it comes and knows nothing of tools, as SmolLM2's.
PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
#: System first only, strict alternation, no tools, as Gemma's and Mistral's older ones.
STRICT = """{%- if messages[0].role == 'system' -%}
{{- '[system]' + messages[0].content -}}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('Roles must alternate') -}}{%- endif -%}
{{- '[' + m.role + ']' + m.content -}}
{%- endfor -%}"""
#: No system role at all, as Gemma 1's.
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + STRICT
)
#: System where it stands, tool calls and results, as Qwen's and Llama 3's; drops system messages later on.
TOOLS = """{%- for m in messages -%}
{%- if m.role == 'system' and loop.index0 > 0 -%}{%- continue -%}{%- endif -%}
{{- '[' + m.role + ']' + m.content -}}
{%- for c in m.tool_calls or [] -%}
<call>{{ c.function.name }}({{ c.function.arguments | tojson }}){{ c.id }}</call>
{%- endfor -%}
{%- endfor -%}"""
DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}(dev){% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def render(source: str, *messages: dict[str, Any]) -> str:
    template = ChatTemplate(source)
    return template.render(normalize(messages, TemplateTraits(template)), add_generation_prompt=True)


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: Any, content: Any = None) -> dict[str, Any]:
    function = {"name": "sum", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


HISTORY = (says("user", "2+2?"), call('{"a": 2}'), says("tool", "4", tool_call_id="c1"), says("user", "ok?"))


@pytest.mark.parametrize("source", [PLAIN, STRICT, NO_SYSTEM, TOOLS, DEVELOPER])
def test_null_content_beside_a_call_keeps_the_call_and_the_result(source: str) -> None:
    text = render(source, *HISTORY)
    assert "None" not in text and "null" not in text
    for part in ("2+2?", "sum", '"a": 2', "4", "ok?"):
        assert part in text


def test_tool_calls_in_the_templates_own_form() -> None:
    assert render(TOOLS, *HISTORY) == '[user]2+2?[assistant]<call>sum({"a": 2})c1</call>[tool]4[user]ok?'


def test_tool_calls_spelled_out_where_the_template_has_no_form() -> None:
    spelled = '<tool_call>\n{"name": "sum", "arguments": {"a": 2}}\n</tool_call>'
    assert render(PLAIN, *HISTORY) == f"[user]2+2?[assistant]{spelled}[tool]4[user]ok?"
    result = "<tool_response>\n4\n</tool_response>"
    assert render(STRICT, *HISTORY) == f"[user]2+2?[assistant]{spelled}[user]{result}\n\nok?"
    assert f"I add\n{spelled}" in render(PLAIN, says("user", "x"), call('{"a": 2}', "I add"))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": {"b": [1, "x"]}}', '{"a": {"b": [1, "x"]}}'),
        ("{broken", '"{broken"'),
        ('"text"', '"\\"text\\""'),
        ("[1]", '"[1]"'),
        ('{"path": "C:\\Users"}', '"{\\"path\\": \\"C:\\\\Users\\"}"'),
        ("", "{}"),
        (None, "{}"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_arguments_are_an_object_when_they_parse_as_one_and_else_their_text(arguments: Any, shown: str) -> None:
    assert f"<call>sum({shown})c1</call>" in render(TOOLS, says("user", "x"), call(arguments))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([], ""),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        (["a", {"type": "text", "text": None}], "a"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_contents(role: str, content: Any, text: str) -> None:
    assert render(PLAIN, says(role, content)) == f"[{role}]{text}"


def test_missing_content() -> None:
    assert render(PLAIN, {"role": "assistant"}) == "[assistant]"


def test_developer_where_only_a_first_system_message_is_allowed() -> None:
    messages = (says("user", "Hi"), says("developer", "Answer with one word."), says("user", "Why?"))
    assert render(STRICT, *messages) == "[system]Answer with one word.[user]Hi\n\nWhy?"
    assert render(NO_SYSTEM, *messages) == "[user]Answer with one word.\n\nHi\n\nWhy?"
    assert render(TOOLS, *messages) == "[system]Answer with one word.[user]Hi[user]Why?"


def test_a_template_that_knows_developer_gets_it() -> None:
    assert render(DEVELOPER, says("developer", "x"), says("user", "y")) == "(dev)[developer]x[user]y"


def test_system_messages_stay_where_the_template_renders_them() -> None:
    messages = (says("system", "a"), says("system", "b"), says("user", "c"), says("system", "d"), says("user", "e"))
    assert render(PLAIN, *messages) == "[system]a[system]b[user]c[system]d[user]e"
    assert render(STRICT, *messages) == "[system]a\n\nb\n\nd[user]c\n\ne"
    assert render(STRICT, messages[0], messages[2]) == "[system]a[user]c"


def test_only_a_system_message_for_a_template_without_that_role() -> None:
    assert render(NO_SYSTEM, says("system", "a")) == "[user]a"


def test_thousands_of_long_neighbours_are_joined() -> None:
    """30 MB in one turn; joined one by one, they would take minutes."""
    texts = [str(index % 10) * 3000 if index % 3 else "" for index in range(10_000)]
    messages = [{"role": "user", "content": text} for text in texts]
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": ""}]
    plain = normalize(messages, TemplateTraits(ChatTemplate(STRICT)))
    assert [message["role"] for message in plain] == ["user", "assistant", "user"]
    assert plain[0]["content"].split("\n\n") == [text for text in texts if text]
    assert plain[2]["content"] == ""


def test_neighbours_are_joined_only_where_the_template_refuses_them() -> None:
    messages = (says("user", "a"), says("user", "b"), says("assistant", "c"), says("assistant", ""), says("user", "d"))
    assert render(PLAIN, *messages) == "[user]a[user]b[assistant]c[assistant][user]d"
    assert render(STRICT, *messages) == "[user]a\n\nb[assistant]c[user]d"


def test_legacy_function_role_is_a_tool_result() -> None:
    assert render(TOOLS, says("user", "a"), says("function", "r", name="f")) == "[user]a[tool]r"


def test_reasoning_goes_to_the_template_under_one_name() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
    assert render(source, says("assistant", "a", reasoning_content="why")) == "why|a"
    assert render(source, says("assistant", "a", reasoning="why")) == "why|a"
    assert render(source, says("assistant", "a", reasoning=None)) == "|a"


def test_the_input_is_not_changed() -> None:
    message = call('{"a": 1}')
    render(STRICT, says("user", "x"), message)
    assert message == call('{"a": 1}')


def test_a_template_that_would_take_a_late_system_message_for_an_answer() -> None:
    """It counts turns only, as Gemma 3's: user, system, user passes, user, assistant, system, user does not."""
    messages = (says("user", "a"), says("assistant", "b"), says("system", "c"), says("user", "d"))
    assert render(STRICT, *messages) == "[system]c[user]a[assistant]b[user]d"


#: As Mistral's: insists on ids of nine characters.
NINE = """{%- for m in messages -%}
{%- for c in m.tool_calls or [] -%}
{%- if c.id | length != 9 -%}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}
<{{ c.id }}>{{ c.function.name }}
{%- endfor -%}
{%- if m.role == 'tool' -%}({{ m.tool_call_id }}){%- endif -%}
{{- m.content -}}
{%- endfor -%}"""


def test_ids_of_any_form_for_a_template_that_wants_nine_characters() -> None:
    text = render(NINE, *HISTORY)
    short = text[text.index("<") + 1 : text.index(">")]
    assert len(short) == 9 and short.isalnum()
    assert text == f"2+2?<{short}>sum({short})4ok?"
