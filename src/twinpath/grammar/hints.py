"""What a grammar's text tells about short completions: keys, constants, and how much one token can open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import msgspec

from twinpath.grammar.schema import subschemas
from twinpath.grammar.structure import ToolGrammar
from twinpath.types import Grammar

#: Each is tried where a choice is open.
_MAX_WORDS = 256
#: Nested required objects are followed this deep.
_MAX_DEPTH = 12
#: Tokens of the shortest value of a type, at most.
_TYPE_TOKENS = {"string": 2, "object": 2, "array": 2, "integer": 1, "number": 1, "boolean": 2, "null": 2}
#: In a language that is not JSON nothing is known: completions are checked before every token from here on.
_UNKNOWN_JUMP = 16

_encode = msgspec.json.encode
#: Tokens that a text takes.
Measure = Callable[[bytes], int]


@dataclass(frozen=True, slots=True)
class Hints:
    """`keys`: object keys with quotes and colon, the required and the later ones first. `constants`: JSON values, short
    ones first.

    `jump_tokens`: what one token can add at most to the shortest completion, as far as the schema tells.
    """

    keys: tuple[bytes, ...] = ()
    constants: tuple[bytes, ...] = ()
    jump_tokens: int = _UNKNOWN_JUMP
    is_json: bool = False
    #: Ends the free text that comes first, and what begins it where it need not be there.
    marker: bytes = b""
    opener: bytes = b""
    #: What ends a list of calls: without it, one call more always seems to lead on.
    closing: bytes = b""

    def joined(self, other: Hints) -> Hints:
        """For a language that is either of two."""
        return Hints(
            (*self.keys, *other.keys)[:_MAX_WORDS],
            tuple(sorted({*self.constants, *other.constants}, key=len))[:_MAX_WORDS],
            max(self.jump_tokens, other.jump_tokens),
            self.is_json and other.is_json,
            closing=self.closing,
        )

    @staticmethod
    def of(grammar: Grammar, measure: Measure) -> Hints:
        answer = Hints._of_answer(grammar, measure)
        return replace(answer, marker=grammar.free_until.encode(), opener=grammar.free_from.encode())

    @staticmethod
    def _of_answer(grammar: Grammar, measure: Measure) -> Hints:
        if grammar.kind == "json_schema":
            schema = msgspec.json.decode(grammar.source)
            return _of_schemas([schema], _Sizes(schema, measure).largest())
        if grammar.kind == "tools":
            tools = msgspec.json.decode(grammar.source, type=ToolGrammar)
            ends = [tools.separator + call.begin + call.end + tools.prefix for call in tools.calls]
            frames = [measure(text.encode()) for text in ends]
            sizes = [_Sizes(call.schema, measure).largest() for call in tools.calls]
            found = _of_schemas([call.schema for call in tools.calls], max(map(sum, zip(frames, sizes, strict=True))))
            found = replace(found, closing=tools.suffix.encode())
            return found if tools.otherwise is None else found.joined(Hints._of_answer(tools.otherwise, measure))
        if grammar.kind == "choice":
            words = msgspec.json.decode(grammar.source, type=list[str])
            return Hints(constants=tuple(sorted((word.encode() for word in words), key=len))[:_MAX_WORDS])
        return Hints()


def _of_schemas(schemas: list[Any], jump_tokens: int) -> Hints:
    required: list[bytes] = []
    optional: list[bytes] = []
    constants: set[bytes] = set()
    for node in _nodes(schemas):
        names = node.get("properties")
        needed = node.get("required")
        for name in reversed(list(names) if isinstance(names, dict) else []):
            (required if isinstance(needed, list) and name in needed else optional).append(_encode(name) + b":")
        values = node.get("enum", [])
        for value in [*(values if isinstance(values, list) else ()), *([node["const"]] if "const" in node else ())]:
            constants.add(_encode(value))
        if len(required) + len(optional) + len(constants) > 4 * _MAX_WORDS:
            break
    keys = tuple(dict.fromkeys((*required, *optional)))[:_MAX_WORDS]
    return Hints(keys, tuple(sorted(constants, key=len))[:_MAX_WORDS], jump_tokens, is_json=True)


def _nodes(schemas: list[Any]) -> Iterable[dict[str, Any]]:
    stack = list(schemas)
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [child for _, child in subschemas(node)]


class _Sizes:
    """Tokens of the shortest instances, where a choice counts as its largest branch: a token may take that one."""

    def __init__(self, root: Any, measure: Measure) -> None:
        self._root = root
        self._measure = measure
        self._known: dict[int, int] = {}

    def largest(self) -> int:
        return max([self._of(node, 0) for node in _nodes([self._root])], default=2) + 4

    def _of(self, node: Any, depth: int) -> int:
        if not isinstance(node, dict) or depth > _MAX_DEPTH:
            return 2
        if id(node) not in self._known:
            self._known[id(node)] = 2  # Of a node that holds itself.
            self._known[id(node)] = self._compute(node, depth + 1)
        return self._known[id(node)]

    def _compute(self, node: dict[str, Any], depth: int) -> int:
        if "$ref" in node:
            return self._of(self._target(node["$ref"]), depth)
        if "const" in node:
            return self._measure(_encode(node["const"]))
        if isinstance(node.get("enum"), list):
            return max(self._measure(_encode(value)) for value in node["enum"])
        branches = [b for k in ("anyOf", "oneOf", "allOf") for b in node.get(k, []) if isinstance(node.get(k), list)]
        kinds = node.get("type", [])
        size = max([_TYPE_TOKENS.get(kind, 2) for kind in (kinds if isinstance(kinds, list) else [kinds])], default=2)
        return max([size + self._inside(node, depth), *(self._of(branch, depth) for branch in branches)])

    def _inside(self, node: dict[str, Any], depth: int) -> int:
        size = int(_number(node.get("minLength"))) + len(str(node.get("minimum", "")))
        properties = node.get("properties")
        if isinstance(properties, dict) and isinstance(node.get("required"), list):
            size += sum(
                self._measure(_encode(n)) + 2 + self._of(properties.get(n, {}), depth) for n in node["required"]
            )
        return size + int(_number(node.get("minItems"))) * (1 + self._of(node.get("items", {}), depth))

    def _target(self, reference: str) -> Any:
        node = self._root
        for part in reference.partition("#")[2].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = node[int(name)] if name.isdigit() and int(name) < len(node) else {}
            else:
                node = node.get(name, {}) if isinstance(node, dict) else {}
        return node


def _number(value: Any) -> float:
    return min(value, 1e6) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0
