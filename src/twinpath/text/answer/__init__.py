"""An answer's text -> its parts: reasoning, content, tool calls; and how each model family spells them.

One incremental parser per format. What it yields does not depend on how the text was cut into pieces, only on the text;
and it yields as early as the text allows.

May import: chat_template, errors. Never: api, engine, tokenisers (special tokens come as their spelling).
"""

from twinpath.text.answer.choose import answer_format
from twinpath.text.answer.formats import TOOL_FORMATS, ToolFormat
from twinpath.text.answer.message import Message, MessageCall
from twinpath.text.answer.parser import NO_TOOLS, AnswerFormat, AnswerParser
from twinpath.text.answer.parts import Part, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart
from twinpath.text.answer.reasoning import REASONING_FORMATS, ReasoningMarkers
from twinpath.text.answer.structure import CallBranch, CallStructure

__all__ = [
    "NO_TOOLS",
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "AnswerFormat",
    "AnswerParser",
    "CallBranch",
    "CallStructure",
    "Message",
    "MessageCall",
    "Part",
    "ReasoningDelta",
    "ReasoningMarkers",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolFormat",
    "answer_format",
]
