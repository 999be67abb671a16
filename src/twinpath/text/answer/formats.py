"""The tool formats by name: how each is read, and how it is spelled where calls are demanded.

Sources: chat templates of the named models; for Mistral mistral-common; for Kimi K2's `docs/tool_call_guidance.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twinpath.text.answer import marked_calls as marked
from twinpath.text.answer.cursor import Cursor, Steps
from twinpath.text.answer.json_calls import TaggedJson
from twinpath.text.answer.marked_calls import MarkedCalls
from twinpath.text.answer.output import Output
from twinpath.text.answer.pythonic import Pythonic
from twinpath.text.answer.structure import NAME, CallShape
from twinpath.text.answer.tagged_parameters import read_glm, read_qwen

PYTHON_TAG = "<|python_tag|>"
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"


class ReadCalls(Protocol):
    """Reads content and calls to the end of the answer, or until the output is full."""

    @property
    def marks(self) -> tuple[str, ...]: ...

    def __call__(self, cursor: Cursor, output: Output) -> Steps: ...


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    read: ReadCalls
    shape: CallShape
    #: The model knows no role for results: it reads them in a user's turn, whatever its template would render.
    results_from_user: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Spellings that matter, control tokens or not: all must reach the parser."""
        return self.read.marks


def _tagged(begin: str, end: str) -> CallShape:
    return CallShape("", f'{begin}\n{{"name": "{NAME}", "arguments": ', f"}}\n{end}", "\n", "")


def _list(opening: str, closing: str) -> CallShape:
    return CallShape(opening, f'{{"name": "{NAME}", "arguments": ', "}", ", ", closing)


def _object(mark: str) -> CallShape:
    return CallShape("", f'{{"name": "{NAME}", "parameters": ', "}", "; ", "", mark)


_KIMI = CallShape(
    marked.KIMI_SECTION,
    f"{marked.KIMI_CALL}functions.{NAME}:0{marked.KIMI_ARGUMENTS}",
    marked.KIMI_CALL_END,
    "",
    marked.KIMI_SECTION_END,
)
_DEEPSEEK_V3 = CallShape(
    marked.DEEPSEEK_SECTION,
    f"{marked.DEEPSEEK_CALL}function{marked.DEEPSEEK_SEPARATOR}{NAME}\n```json\n",
    f"\n```{marked.DEEPSEEK_CALL_END}",
    "\n",
    marked.DEEPSEEK_SECTION_END,
)
_DEEPSEEK_V31 = CallShape(
    marked.DEEPSEEK_SECTION,
    f"{marked.DEEPSEEK_CALL}{NAME}{marked.DEEPSEEK_SEPARATOR}",
    marked.DEEPSEEK_CALL_END,
    "",
    marked.DEEPSEEK_SECTION_END,
)
_mistral = MarkedCalls(marked.MISTRAL_BEGIN, (), (marked.MISTRAL_ID, marked.MISTRAL_ARGUMENTS), marked.read_mistral)
_deepseek = MarkedCalls(
    marked.DEEPSEEK_CALL,
    (marked.DEEPSEEK_SECTION, marked.DEEPSEEK_SECTION_END, marked.DEEPSEEK_CALL_END),
    (marked.DEEPSEEK_SEPARATOR,),
    marked.read_deepseek,
)
_qwen_xml = MarkedCalls("<tool_call>", ("</tool_call>",), (), read_qwen)
_glm = MarkedCalls(
    "<tool_call>", ("</tool_call>",), ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), read_glm
)
_kimi = MarkedCalls(
    marked.KIMI_CALL,
    (marked.KIMI_SECTION, marked.KIMI_SECTION_END, marked.KIMI_CALL_END),
    (marked.KIMI_ARGUMENTS,),
    marked.read_kimi,
)

TOOL_FORMATS = {
    tool_format.name: tool_format
    for tool_format in (
        # Hermes 2 Pro, Qwen 2.5 and 3, SmolLM3.
        ToolFormat("hermes", TaggedJson("<tool_call>", "</tool_call>"), _tagged("<tool_call>", "</tool_call>")),
        # Qwen 3 Coder, Qwen 3.5; GLM 4.5. Demanded calls are JSON in the same tags, which their parsers read as well.
        ToolFormat("qwen3_xml", _qwen_xml, _tagged("<tool_call>", "</tool_call>")),
        ToolFormat("glm45", _glm, _tagged("<tool_call>", "</tool_call>")),
        # SmolLM2 Instruct: one list in the tags.
        ToolFormat(
            "smollm2",
            TaggedJson("<tool_call>", "</tool_call>", bare=True),
            _list("<tool_call>[\n", "\n]</tool_call>"),
            results_from_user=True,
        ),
        # Llama 3.1 and 3.2: a bare object, at times after a tag.
        ToolFormat("llama3_json", TaggedJson(PYTHON_TAG, None, bare=True), _object(PYTHON_TAG)),
        # Llama 3.2's lists and Llama 4. Demanded calls are JSON, which its parser reads as well.
        ToolFormat("pythonic", Pythonic(PYTHON_START, PYTHON_END), _object(PYTHON_START)),
        # Mistral up to tokeniser v7, and from v11 on.
        ToolFormat("mistral", _mistral, _list(f"{marked.MISTRAL_BEGIN}[", "]")),
        ToolFormat("mistral_v11", _mistral, CallShape("", f"{marked.MISTRAL_BEGIN}{NAME}[ARGS]", "", "", "")),
        ToolFormat("deepseek_v3", _deepseek, _DEEPSEEK_V3),
        ToolFormat("deepseek_v31", _deepseek, _DEEPSEEK_V31),
        ToolFormat("kimi_k2", _kimi, _KIMI),
        # Phi-4-mini, Granite 3.
        ToolFormat(
            "tool_call_list",
            TaggedJson("<|tool_call|>", "<|/tool_call|>", bare=True),
            _list("<|tool_call|>[", "]<|/tool_call|>"),
        ),
        # For models whose template knows no tools: told in words, read in any JSON form.
        ToolFormat(
            "json", TaggedJson("<tool_call>", "</tool_call>", bare=True), _tagged("<tool_call>", "</tool_call>")
        ),
    )
}
