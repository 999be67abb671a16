"""Templates render as Transformers renders them, and hostile ones do no harm."""

from __future__ import annotations

import datetime
import itertools
import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from twinpath.errors import InvalidRequest, ModelLoadError
from twinpath.text import chat_template
from twinpath.text.chat_template import ChatTemplate

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & \"kind\" * 'now'"},
    {"role": "user", "content": "  é你😀\n"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, None]}}}]},
    {"role": "tool", "content": "4"},
]
TEMPLATES = {
    "chatml": """{% for m in messages %}
{{ '<|im_start|>' + m.role + '\\n' + m['content'] + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} {{ {'b': 1, 'a': 'é<'} | tojson }}",
    "loops": """{%- for m in messages -%}
    {%- if m.role == 'system' %}{% continue %}{% endif -%}
    {%- if loop.last %}{% break %}{% endif -%}
    {{- loop.index ~ m.content | trim ~ ' ' -}}
{%- endfor -%}""",
    "namespace": """{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
{%- for m in messages if m.tool_calls is defined %}{% for c in m.tool_calls %}
{{- c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}""",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "methods": "{{ messages[0].content.split('<')[0].upper() }}{{ messages[-1]['role'].startswith('to') }}",
    "macro": "{% macro turn(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "tools": "{% if tools %}{{ tools[0].name }}{% else %}none{% endif %}{% if documents is none %}d{% endif %}",
    "slices": "{% for m in messages[1:] %}{{ m.role[:2] }}{% endfor %}{{ range(3) | list }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_as_transformers(name: str, add_generation_prompt: bool) -> None:
    right, _ = render_jinja_template(
        [MESSAGES], chat_template=TEMPLATES[name], add_generation_prompt=add_generation_prompt
    )
    assert ChatTemplate(TEMPLATES[name]).render(MESSAGES, add_generation_prompt=add_generation_prompt) == right[0]


def test_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ enable_thinking }}{{ missing }}", {"bos_token": "<s>"})
    assert template.render([], enable_thinking=False) == "<s>False"


def test_strftime_now() -> None:
    today = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([])
    assert abs(datetime.date.fromisoformat(today) - datetime.date.today()) <= datetime.timedelta(days=1)


def test_the_templates_own_words_reach_the_caller() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must\\nalternate') }}")
    with pytest.raises(InvalidRequest, match=r"^chat template: Roles must alternate$") as caught:
        template.render([])
    assert caught.value.status == 400 and caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].gone.deeper }}",
        "{{ messages[7].role }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.items() }}",
        "{{ {}['x'].y }}",
        "{{ messages | map('nofilter') | list }}",
        "{{ nothing() }}",
        "{% for a, b in messages[0].content %}{% endfor %}",
    ],
)
def test_a_template_that_cannot_cope_is_a_400(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert "\n" not in caught.value.message and len(caught.value.message) < 600


@pytest.mark.parametrize("source", ["{% if %}", "{{ unclosed", "{% for x in y %}", "{{ x | nofilter }}"])
def test_a_template_that_does_not_compile_names_the_line(source: str) -> None:
    with pytest.raises(ModelLoadError, match="chat template, line 2: "):
        ChatTemplate("\n" + source)


def test_a_template_nested_without_end_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate("{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''['__class__'] }}{{ ('' | attr('__class__')).x }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [0] }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'a' | center(1000000000) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
    ],
)
def test_hostile_expressions_are_refused(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_endless_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops without output look at the clock, which has run out here."""
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", -1.0)
    for source in ("{% for i in range(9) %}{% endfor %}", "{% for m in messages %}{{ m }}{% endfor %}"):
        with pytest.raises(InvalidRequest, match="rendering took longer"):
            ChatTemplate(source).render([{}])


def test_time_in_which_nothing_ran_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 2 * chat_template.RENDER_LIMIT_S)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert ChatTemplate("{% for i in range(9) %}a{% endfor %}").render([{}]) == "a" * 9


def test_endless_output_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1000)
    with pytest.raises(InvalidRequest, match="longer than 1000 characters"):
        ChatTemplate("{% for i in range(1000) %}{{ 'abc' }}{% endfor %}").render([])


def test_rendering_leaves_the_messages_alone() -> None:
    messages = [{"role": "user", "content": "x"}]
    ChatTemplate("{% set m = messages[0] %}{{ m.content }}").render(messages)
    assert messages == [{"role": "user", "content": "x"}]
