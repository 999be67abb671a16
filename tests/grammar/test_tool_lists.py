"""Lists of calls end when tokens run out, however a format separates and closes them."""

from __future__ import annotations

import json
import random

import pytest

from grammar.conftest import Sayer
from twinpath.api.schemas import ToolFunction
from twinpath.api.tool_fields import ToolUse
from twinpath.api.tool_grammar import tools_grammar
from twinpath.grammar import schema_grammar
from twinpath.text.answer import TOOL_FORMATS, AnswerFormat, Message

SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "array", "items": {"type": "integer"}}, "text": {"type": "string"}},
    "required": ["to", "text"],
    "additionalProperties": False,
}
TOOLS = (ToolFunction(name="send", parameters=SCHEMA), ToolFunction(name="ping"))
#: More bytes than the shortest call of any format takes.
ONE_CALL = 170


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("form", [False, True], ids=["demanded", "or an answer"])
def test_every_list_is_whole_whenever_its_tokens_run_out(sayer: Sayer, name: str, form: bool) -> None:
    answers = AnswerFormat(TOOL_FORMATS[name], None)
    otherwise = schema_grammar(SCHEMA, strict=True, param="x") if form else None
    grammar = tools_grammar(ToolUse(TOOLS, TOOLS, not form, None), answers, otherwise=otherwise)
    assert grammar is not None
    rng, num_calls = random.Random(name), set()
    for seed in range(8):
        answer = sayer.say(grammar, rng.randint(ONE_CALL, 3 * ONE_CALL), seed)
        parser = answers.parser(tools={"send": SCHEMA, "ping": {}})
        message = Message.of(parser.push(answer.text) + parser.finish())
        assert answer.finished, answer.text
        assert all(isinstance(json.loads(call.arguments), dict) for call in message.calls)
        assert not message.content or (form and set(json.loads(message.content)) == {"to", "text"})
        num_calls.add(len(message.calls))
    assert max(num_calls) > 1
