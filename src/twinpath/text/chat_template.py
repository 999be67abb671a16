"""Chat templates: Jinja as Hugging Face defines it, in a sandbox with limits.

Templates come with models, and a model may come from anywhere: so attributes are sandboxed, objects immutable, and
neither time nor output unbounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twinpath.errors import InvalidRequest, ModelLoadError

#: Far above what the slowest known template needs for a full context (about 0.1 s for 1 MB of messages).
RENDER_LIMIT_S = 10.0
MAX_OUTPUT_CHARS = 64 * 1024 * 1024
MAX_REPEATED_ITEMS = 1_000_000
_MESSAGE_LIMIT = 500


class TemplateLimit(jinja2.TemplateError):
    """A template ran too long or grew too large."""


class ChatTemplate:
    """A compiled template. Thread-safe: every rendering has its own state."""

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """`variables` are always visible (`bos_token` and its like).

        Raises: ModelLoadError when `source` does not compile.
        """
        self.source = source
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"chat template, line {error.lineno}: {_clip(error.message or '')}") from None
        except (RecursionError, MemoryError, OverflowError):
            raise ModelLoadError("chat template: nested too deeply") from None

    def render(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> str:
        """The prompt text; a variable may have any name.

        Raises: InvalidRequest with the template's own words when it refuses the messages.
        """
        limit = _TimeLimit()
        names = {"tools": None, "documents": None} | self._variables | variables
        names |= {"messages": messages, "range": _bounded_range(limit)}
        try:
            return _collect(self._template.generate(names), limit)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"chat template: {_clip(error.message or str(error))}", param="messages") from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, IndexError, AssertionError) as error:
            raise InvalidRequest(
                f"chat template cannot render these messages: {_clip(str(error))}", param="messages"
            ) from None
        except (RecursionError, MemoryError):
            raise InvalidRequest("chat template: nested too deeply or too large", param="messages") from None


class _TimeLimit:
    """Of work, not of time: that the process was stopped meanwhile, or the machine slept, is no template's fault."""

    def __init__(self) -> None:
        self._end_s = time.monotonic() + RENDER_LIMIT_S
        self._work_end_s = time.thread_time() + RENDER_LIMIT_S

    def check(self) -> None:
        # The first clock is the cheaper one.
        if time.monotonic() > self._end_s and time.thread_time() > self._work_end_s:
            raise TemplateLimit(f"rendering took longer than {RENDER_LIMIT_S:g} s")


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses operations whose result could be of any size."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * abs(right))
        if operator == "*":
            for items, count in ((left, right), (right, left)):
                if isinstance(items, str | list | tuple) and isinstance(count, int):
                    _check_size(len(items) * count)
        if operator == "%" and isinstance(left, str):
            _check_size(len(left))
            if any(character.isdigit() for character in left) or "*" in left:
                raise TemplateLimit("width in a % format")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here its body is plain output."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["tojson"] = _to_json
    for wide in ("center", "indent"):
        environment.filters[wide] = _bounded_width(environment.filters[wide])
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals.pop("lipsum", None)
    return environment


def _collect(pieces: Iterator[str], limit: _TimeLimit) -> str:
    collected: list[str] = []
    num_chars = 0
    for piece in pieces:
        collected.append(piece)
        num_chars += len(piece)
        if num_chars > MAX_OUTPUT_CHARS:
            raise TemplateLimit(f"the prompt is longer than {MAX_OUTPUT_CHARS} characters")
        limit.check()
    return "".join(collected)


def _bounded_range(limit: _TimeLimit) -> Callable[..., Iterator[int]]:
    """`range` that looks at the clock, so that nested loops without output end as well."""

    def bounded(*limits: int) -> Any:
        numbers = range(*limits)
        _check_size(len(numbers))
        return _Ticking(numbers, limit)

    return bounded


class _Ticking(Sequence[int]):
    def __init__(self, numbers: range, limit: _TimeLimit) -> None:
        self._numbers = numbers
        self._limit = limit

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return self._numbers[index]

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            self._limit.check()
            yield number


def _check_size(num_items: int) -> None:
    if num_items > MAX_REPEATED_ITEMS:
        raise TemplateLimit(f"an expression would make {num_items} items")


def _bounded_width(function: Callable[..., str]) -> Callable[..., str]:
    def bounded(text: str, width: Any = 4, *rest: Any, **options: Any) -> str:
        _check_size(width if isinstance(width, int) else len(str(width)))
        return function(text, width, *rest, **options)

    return bounded


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Transformers overrides it: no HTML escaping, characters as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _clip(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _MESSAGE_LIMIT else line[:_MESSAGE_LIMIT] + "..."
