"""Which formats a model writes, seen from its chat template."""

from __future__ import annotations

from twinpath.errors import UserError
from twinpath.text.answer import marked_calls as marked
from twinpath.text.answer.formats import PYTHON_START, PYTHON_TAG, TOOL_FORMATS
from twinpath.text.answer.parser import AnswerFormat
from twinpath.text.answer.reasoning import REASONING_FORMATS

#: Strings of a template and the format they tell of; the first that fits. All strings of an entry must be there.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((marked.KIMI_CALL,), "kimi_k2"),
    ((marked.DEEPSEEK_CALL, "```json"), "deepseek_v3"),
    ((marked.DEEPSEEK_CALL,), "deepseek_v31"),
    ((marked.MISTRAL_BEGIN, "[ARGS]"), "mistral_v11"),
    ((marked.MISTRAL_BEGIN,), "mistral"),
    (("<|tool_call|>",), "tool_call_list"),
    ((PYTHON_START,), "pythonic"),
    (("func_name1(params_name1=params_value1",), "pythonic"),
    (("<tool_call>[",), "smollm2"),
    (("<tool_call>", "<function="), "qwen3_xml"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>",), "hermes"),
    ((PYTHON_TAG,), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
    (("SmolLM", "<|im_start|>"), "smollm2"),
)


def answer_format(template: str | None, *, tools: str = "auto", reasoning: str = "auto") -> AnswerFormat:
    """The formats of a model with this template; a name other than "auto" overrides what the template tells.

    Raises: UserError for a name that is none.
    """
    source = template or ""
    if tools == "auto":
        tools = next((name for signs, name in _SIGNS if all(sign in source for sign in signs)), "json")
    if reasoning == "auto":
        reasoning = next((name for name, marks in REASONING_FORMATS.items() if marks.end in source), "none")
    _check("tool format", tools, TOOL_FORMATS)
    _check("reasoning format", reasoning, {**REASONING_FORMATS, "none": None})
    return AnswerFormat(TOOL_FORMATS[tools], REASONING_FORMATS.get(reasoning))


def _check(what: str, name: str, known: object) -> None:
    assert isinstance(known, dict)
    if name not in known:
        raise UserError(f"unknown {what} {name!r}; known: auto, {', '.join(known)}")
