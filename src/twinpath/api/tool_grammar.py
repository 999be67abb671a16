"""The language of an answer that must call tools, or whose calls must fit their schemas."""

from __future__ import annotations

from collections.abc import Sequence

from twinpath.api.schemas import ToolFunction
from twinpath.api.tool_fields import ToolUse
from twinpath.grammar import CallForm, ToolGrammar
from twinpath.text.answer import AnswerFormat
from twinpath.types import Grammar


def tools_grammar(use: ToolUse, answers: AnswerFormat, *, reasoning_open: bool) -> Grammar | None:
    """None: the model is free to write what it likes. That is so unless a call is demanded or a tool is strict.

    `reasoning_open`: the prompt ends inside reasoning, which is free.
    Raises: InvalidRequest for a schema that cannot be enforced: only strict tools' must be in full, of others the
        grammar follows what it can.
    """
    if not use.is_bound:
        return None
    if strict := [function for function in use.callable if function.strict]:
        _grammar(strict, use, answers).to_grammar(strict=True)
    free_until = answers.reasoning.end if reasoning_open and answers.reasoning is not None else ""
    return _grammar(use.callable, use, answers).to_grammar(free_until=free_until)


def _grammar(functions: Sequence[ToolFunction], use: ToolUse, answers: AnswerFormat) -> ToolGrammar:
    tools = [{"name": function.name, "parameters": function.parameters} for function in functions]
    structure = answers.tools.shape.structure(tools)
    return ToolGrammar(
        calls=tuple(CallForm(branch.begin, branch.schema, branch.end) for branch in structure.branches),
        prefix=structure.opening,
        separator=structure.separator,
        suffix=structure.closing,
        max_calls=use.max_calls,
        trigger="" if use.required else structure.trigger,
    )
