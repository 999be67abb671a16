"""JSON Schemas from callers -> schemas that the engine can follow, or a refusal that names the place.

One walk over the schema's nodes: it counts them, finds keywords that cannot be enforced, resolves local references and
closes objects. `compiler` then says what only the grammar engine knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec

from twinpath.errors import InvalidRequest
from twinpath.grammar.ecma import with_ecma_spaces
from twinpath.grammar.finite import has_finite_instance, resolve
from twinpath.grammar.sanity import fault
from twinpath.types import Grammar

#: Limits of one schema; each is compiled in well under a second at its limit (docs/structured-output.md).
MAX_SCHEMA_BYTES = 512 * 1024
MAX_NODES = 5_000
MAX_DEPTH = 48
MAX_PROPERTIES = 1_000
MAX_ENUM = 20_000
#: `multipleOf` becomes an automaton of as many states as its significant digits spell.
MAX_MULTIPLE = 1_000

#: Keywords whose value is a schema, a list of schemas, and a mapping to schemas.
_ONE = ("items", "additionalProperties", "additionalItems")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
#: Integers, which JSON Schema lets be written as 2.0.
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
#: Beside these, `properties` may not be all that an object's keys depend on.
_COMPOSED = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "additionalProperties")
#: Constraints that no engine state can follow, or that the engine does not: refused when strict, else dropped.
UNSUPPORTED = frozenset(
    (
        *("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("uniqueItems", "contains", "minContains", "maxContains"),
        *("unevaluatedItems", "unevaluatedProperties"),
        *("not", "if", "then", "else"),
    )
)
#: How JSON is written: no blanks but one that may follow a comma or a colon, so that they never run on.
SPACING = {"whitespace_flexible": False, "item_separator": ",[ ]?", "key_separator": ":[ ]?"}

_encoder = msgspec.json.Encoder()


class SchemaRefused(InvalidRequest):
    """A schema that cannot be enforced; `path` is a JSON pointer to the part."""

    code = "invalid_schema"

    def __init__(self, reason: str, *, param: str, path: str) -> None:
        super().__init__(f"Invalid schema '{param}' at '{path or '/'}': {reason}.", param=param)
        self.reason, self.path = reason, path


def any_object() -> Grammar:
    """Some JSON object."""
    return Grammar("json_schema", _encoder.encode({"type": "object", "x-guidance": SPACING}).decode())


def parse_schema(text: bytes | memoryview, param: str) -> Any:
    """JSON text of a schema as an object.

    Raises: InvalidRequest.
    """
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaRefused(f"{len(text)} bytes; at most {MAX_SCHEMA_BYTES} are accepted", param=param, path="")
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise SchemaRefused("it is nested too deeply", param=param, path="") from None
    except ValueError as error:
        raise SchemaRefused(f"not JSON: {error}", param=param, path="") from None


def schema_grammar(schema: Any, *, strict: bool, param: str) -> Grammar:
    """The language of a schema's instances, with keys in the order of `properties`.

    Strict: a keyword that cannot be enforced is refused. Otherwise it is dropped, and the answer fits the rest.
    Raises: SchemaRefused.
    """
    return Grammar("json_schema", _encoder.encode(prepare_schema(schema, strict=strict, param=param)).decode())


def prepare_schema(
    schema: Any, *, strict: bool, param: str, path: str = "", close_objects: bool = True
) -> dict[str, Any]:
    """`schema` as the grammar engine takes it; the caller's object is left as it is.

    Objects that list `properties` and say nothing of others get no others: that is what strict callers must write and
    what the rest mean, and it keeps small models from inventing keys.
    Raises: SchemaRefused.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise SchemaRefused("a schema is an object", param=param, path=path)
    walk = _Walk(schema, strict, param, close_objects)
    prepared = walk.node(schema, path, 0, closable=True)
    assert isinstance(prepared, dict)
    if not has_finite_instance(prepared, _all_nodes(prepared)):
        raise SchemaRefused("no instance of it ever ends", param=param, path=path)
    return prepared | {"x-guidance": SPACING | ({} if strict else {"lenient": True})}


class _Walk:
    def __init__(self, root: dict[str, Any], strict: bool, param: str, close_objects: bool) -> None:
        self._root = root
        self._strict = strict
        self._param = param
        self._close_objects = close_objects
        self._num_nodes = 0
        self._anchors: set[str] = set()
        nodes = list(islice(_all_nodes(root), MAX_NODES))
        # With ids, pointers start at the nearest: left to the grammar engine.
        self._has_ids = any("$id" in node for node in nodes)
        references = (str(part[key]) for part in _objects(root) for key in ("$ref", "$dynamicRef") if key in part)
        self._references = unquote("\n".join(references))
        # A definition that is combined with other schemas somewhere must stay open.
        self._closes_definitions = not any("allOf" in n or ("$ref" in n and "properties" in n) for n in nodes)

    def node(
        self, schema: Any, path: str, depth: int, *, closable: bool, reached: bool = True
    ) -> dict[str, Any] | bool:
        """`reached`: an instance may have to fit it; else it holds at most other schemas that are referred to."""
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise self._refused(path, f"more than {MAX_NODES} subschemas")
        if depth > MAX_DEPTH:
            raise self._refused(path, f"nested more than {MAX_DEPTH} deep")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._refused(path, "a schema is an object or a boolean")
        found = {k: v for k, v in schema.items() if not self._drops(k, v, path, reached)}
        self._check(found, path)
        closable = closable and "allOf" not in found
        for keyword in found:
            found[keyword] = self._child(keyword, found[keyword], f"{path}/{keyword}", depth + 1, closable)
        if isinstance(found.get("pattern"), str):
            found["pattern"] = with_ecma_spaces(found["pattern"])
        if self._close_objects and closable and found.get("properties") and not any(k in found for k in _COMPOSED):
            found["additionalProperties"] = False
        return found

    def _child(self, keyword: str, value: Any, path: str, depth: int, closable: bool) -> Any:
        if keyword in _ONE and not (keyword == "items" and isinstance(value, list)):
            return self.node(value, path, depth, closable=True)
        if keyword in _MANY or keyword == "items":
            if not isinstance(value, list) or (not value and keyword != "prefixItems" and keyword != "items"):
                raise self._refused(path, "a list of schemas is wanted")
            inner = keyword in ("prefixItems", "items") or (closable and keyword != "allOf")
            return [self.node(item, f"{path}/{i}", depth, closable=inner) for i, item in enumerate(value)]
        if keyword in _NAMED:
            if not isinstance(value, dict):
                raise self._refused(path, "an object of schemas is wanted")
            if len(value) > MAX_PROPERTIES:
                raise self._refused(path, f"{len(value)} entries; at most {MAX_PROPERTIES} are accepted")
            inner = self._closes_definitions or keyword not in ("$defs", "definitions")
            return {
                name: self.node(
                    item,
                    f"{path}/{_escape(name)}",
                    depth,
                    closable=inner,
                    reached=keyword not in ("$defs", "definitions") or self._is_reached(name, item),
                )
                for name, item in value.items()
            }
        return value

    def _drops(self, keyword: str, value: Any, path: str, reached: bool) -> bool:
        """Whether a keyword has no effect and stays out."""
        if keyword == "x-guidance":
            return True  # Options of the grammar engine are not the caller's.
        if keyword not in UNSUPPORTED or not reached:
            return False
        if self._strict and not _asks_for_nothing(keyword, value):
            raise self._refused(f"{path}/{keyword}", "this keyword is not supported with strict")
        return True

    def _is_reached(self, name: str, definition: Any) -> bool:
        """Whether a definition may be referred to itself, by pointer, id or anchor, so that its keywords count."""
        hidden = [v for k, v in definition.items() if k in UNSUPPORTED] if isinstance(definition, dict) else []
        if not hidden or any(not UNSUPPORTED.isdisjoint(part) for part in _objects(hidden)):
            return True  # Nothing in it is in question, or more than a look at references can answer.
        own = (definition.get(key) for key in ("$id", "$anchor", "$dynamicAnchor"))
        marks = [f"$defs/{_escape(name)}", f"definitions/{_escape(name)}"]
        marks += [str(value).rsplit("/", 1)[-1] for value in own if value]
        return any(mark in self._references for mark in marks)

    def _check(self, schema: dict[str, Any], path: str) -> None:
        enum = schema.get("enum")
        if enum is not None and (not isinstance(enum, list) or not 0 < len(enum) <= MAX_ENUM):
            raise self._refused(f"{path}/enum", f"a list of 1 to {MAX_ENUM} values is wanted")
        reference = schema.get("$ref")
        if reference is not None and not isinstance(reference, str):
            raise self._refused(f"{path}/$ref", "a string is wanted")
        if reference is not None and reference.startswith("#/") and not self._has_ids:
            self._check_pointer(reference, path)
        for keyword in _COUNTS:
            if isinstance(value := schema.get(keyword), float) and value.is_integer():
                schema[keyword] = int(value)
        if (found := fault(schema)) is not None:
            raise self._refused(f"{path}/{found[0]}", found[1])
        anchor = schema.get("$anchor")
        if anchor is not None and not self._has_ids:
            if anchor in self._anchors:
                raise self._refused(f"{path}/$anchor", f"{anchor!r} names another part already")
            self._anchors.add(anchor)
        multiple = schema.get("multipleOf")
        if multiple is not None:
            self._check_multiple(schema, multiple, path)

    def _check_multiple(self, schema: dict[str, Any], multiple: Any, path: str) -> None:
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or multiple <= 0:
            raise self._refused(f"{path}/multipleOf", "a number above 0 is wanted")
        digits = int("".join(map(str, Decimal(repr(multiple)).normalize().as_tuple().digits)))
        if digits > MAX_MULTIPLE:
            if self._strict:
                raise self._refused(f"{path}/multipleOf", f"more than {MAX_MULTIPLE} steps cannot be followed")
            del schema["multipleOf"]

    def _check_pointer(self, reference: str, path: str) -> None:
        if resolve(self._root, reference) is None:
            raise self._refused(f"{path}/$ref", "it does not name a part of this schema")

    def _refused(self, path: str, reason: str) -> SchemaRefused:
        return SchemaRefused(reason, param=self._param, path=path)


def subschemas(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(JSON pointer, schema) of the nodes right below a node."""
    if not isinstance(schema, dict):
        return
    for keyword in schema:
        value, below = schema[keyword], f"{path}/{keyword}"
        if keyword in _ONE and not isinstance(value, list):
            yield below, value
        elif keyword in (*_MANY, *_ONE) and isinstance(value, list):
            yield from ((f"{below}/{index}", item) for index, item in enumerate(value))
        elif keyword in _NAMED and isinstance(value, dict):
            yield from ((f"{below}/{_escape(name)}", item) for name, item in value.items())


def _all_nodes(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack += [child for _, child in subschemas(node)]


def _objects(root: Any) -> Iterator[dict[str, Any]]:
    """Wherever they stand: also below keywords that are not followed."""
    stack: list[Any] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            yield part
            stack += part.values()
        elif isinstance(part, list):
            stack += part


def _asks_for_nothing(keyword: str, value: Any) -> bool:
    return (keyword == "uniqueItems" and value is False) or (keyword == "unevaluatedProperties" and value is True)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
