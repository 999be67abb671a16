"""The language of an answer that must call tools, or whose calls must fit their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twinpath.api.schemas import ToolFunction
from twinpath.api.tool_fields import ToolUse
from twinpath.grammar import CallForm, SchemaRefused, ToolGrammar
from twinpath.text.answer import AnswerFormat
from twinpath.types import Grammar


def tools_grammar(
    use: ToolUse, answers: AnswerFormat, *, free_until: str = "", free_from: str = "", otherwise: Grammar | None = None
) -> Grammar | None:
    """None: the model is free to write what it likes. That is so unless a call is demanded, a tool is strict, or an
    answer without a call must be a word of `otherwise`.

    `free_until`, `free_from`: the marks of reasoning, which is free, as in `Grammar`.
    Raises: InvalidRequest for a schema that cannot be enforced: only strict tools' must be in full, of others the
        grammar follows what it can.
    """
    if not use.is_bound and otherwise is None:
        return None
    if strict := [function for function in use.callable if function.strict]:
        with schemas_named(use, strict):
            _grammar(strict, use, answers, None).to_grammar(strict=True)
    otherwise = None if use.required else otherwise
    with schemas_named(use, use.callable):
        return _grammar(use.callable, use, answers, otherwise).to_grammar(free_until=free_until, free_from=free_from)


@contextmanager
def schemas_named(use: ToolUse, functions: Sequence[ToolFunction]) -> Iterator[None]:
    """A schema's error has the place of `functions` at the head of its path: it leaves the body with the place where
    the caller has it."""
    try:
        yield
    except SchemaRefused as error:
        index, _, path = error.path.removeprefix("/").partition("/")
        param = use.place_of(functions[int(index)])
        raise SchemaRefused(error.reason, param=param, path=path and f"/{path}") from None


def _grammar(
    functions: Sequence[ToolFunction], use: ToolUse, answers: AnswerFormat, otherwise: Grammar | None
) -> ToolGrammar:
    tools = [{"name": function.name, "parameters": function.parameters} for function in functions]
    structure = answers.tools.shape.structure(tools, marked=otherwise is not None)
    return ToolGrammar(
        calls=tuple(CallForm(branch.begin, branch.schema, branch.end) for branch in structure.branches),
        prefix=structure.opening,
        separator=structure.separator,
        suffix=structure.closing,
        max_calls=use.max_calls,
        trigger="" if use.required or otherwise is not None else structure.trigger,
        otherwise=otherwise,
    )
