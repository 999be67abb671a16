"""`response_format` and its relatives of other servers -> the grammar that the answer must fit."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from twinpath.api.field_look import FieldLook
from twinpath.api.generation import Door
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest
from twinpath.errors import InvalidRequest
from twinpath.grammar import any_object, check_lark, check_pattern, parse_schema, schema_grammar
from twinpath.types import Grammar

#: Longest pattern or grammar text, and most characters of all choices together.
MAX_PATTERN_CHARS = 64 * 1024
MAX_CHOICES = 20_000
#: Preparing a schema costs about as much as encoding forty times its bytes.
_SCHEMA_WEIGHT = 1 / 40

#: Field of the body -> how its value is spelled in `structured_outputs`.
_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "ebnf": "grammar",
}
#: Fields that ask for a grammar; at most one may.
_ASKING = ("response_format", "structured_outputs", *_FIELDS)
_LOOK = FieldLook(_ASKING)
#: Ways to say "not given"; the last is llama.cpp's for `grammar`.
_NOTHING = (b"", b"null", b'""')
_any_value = msgspec.json.Decoder()
_members = msgspec.json.Decoder(dict[str, Raw])


async def answer_grammar(
    door: Door, fields: ChatCompletionRequest | CompletionRequest, *, free_until: str = "", free_from: str = ""
) -> tuple[Grammar | None, str]:
    """What the answer must be a word of, known to compile (None: anything), and the field that asks for it.
    `free_until`, `free_from`: as in `Grammar`.

    Raises: InvalidRequest naming the field, and of a schema the part.
    """
    asked = _asked(fields) if _LOOK.finds_any(fields) else ()
    if not asked:
        return None, ""
    if len(asked) > 1:
        raise InvalidRequest(f"'{asked[0][0]}' and '{asked[1][0]}' exclude each other.", param=asked[1][0])
    param, text = asked[0]
    grammar = await door.offload.run(int(len(text) / _SCHEMA_WEIGHT), lambda: _grammar(param, text))
    if grammar is None:
        return None, param
    grammar = msgspec.structs.replace(grammar, free_until=free_until, free_from=free_from)
    await door.grammars.check(grammar, param)
    return grammar, param


def _asked(fields: ChatCompletionRequest | CompletionRequest) -> list[tuple[str, memoryview]]:
    texts = [(name, memoryview(raw)) for name in _ASKING if (raw := getattr(fields, name, None)) is not None]
    return [(name, text) for name, text in texts if len(text) > 4 or bytes(text) not in _NOTHING]


def _grammar(param: str, text: memoryview) -> Grammar | None:
    if param == "response_format":
        return _response_format(text)
    if param == "structured_outputs":
        return _structured_outputs(text)
    return _constraint(_FIELDS[param], text, param)


def _response_format(text: memoryview) -> Grammar | None:
    param = "response_format"
    members = _object(text, param)
    kind = _value(members.get("type", Raw(b"null")), "response_format.type")
    match kind:
        case "text":
            return None
        case "json_object":
            # llama.cpp's form carries a schema here.
            return _schema(members["schema"], f"{param}.schema", strict=False) if "schema" in members else any_object()
        case "json_schema":
            if "json_schema" not in members:
                raise InvalidRequest("'response_format.json_schema' is missing.", param=param)
            inner = _object(memoryview(members["json_schema"]), f"{param}.json_schema")
            strict = _value(inner.get("strict", Raw(b"null")), f"{param}.json_schema.strict")
            if strict not in (None, True, False):
                raise InvalidRequest(f"'{param}.json_schema.strict' must be true or false.", param=param)
            if "schema" not in inner:
                raise InvalidRequest(f"'{param}.json_schema.schema' is missing.", param=param)
            return _schema(inner["schema"], f"{param}.json_schema.schema", strict=strict is True)
        case "regex" | "choice" | "grammar":
            if kind not in members:
                raise InvalidRequest(f"'{param}.{kind}' is missing.", param=param)
            return _constraint(kind, memoryview(members[kind]), f"{param}.{kind}")
    raise InvalidRequest(
        "'response_format.type' must be text, json_object, json_schema, regex, choice or grammar.", param=param
    )


def _structured_outputs(text: memoryview) -> Grammar | None:
    param = "structured_outputs"
    members = {name: raw for name, raw in _object(text, param).items() if bytes(memoryview(raw)) != b"null"}
    if "json_object" in members:
        return any_object() if _value(members["json_object"], f"{param}.json_object") is True else None
    kinds = [kind for kind in ("json", "regex", "choice", "grammar") if kind in members]
    if len(kinds) != 1:
        raise InvalidRequest(f"'{param}' wants one of json, json_object, regex, choice, grammar.", param=param)
    return _constraint(kinds[0], memoryview(members[kinds[0]]), f"{param}.{kinds[0]}")


def _constraint(kind: str, text: memoryview, param: str) -> Grammar:
    if kind == "json":
        return _schema(Raw(text), param, strict=False)
    value = _value(Raw(text), param)
    if kind == "choice":
        if not isinstance(value, list) or not all(isinstance(choice, str) for choice in value):
            raise InvalidRequest(f"'{param}' must be a list of strings.", param=param)
        if not 0 < len(value) <= MAX_CHOICES:
            raise InvalidRequest(f"'{param}' has {len(value)} strings; 1 to {MAX_CHOICES} are accepted.", param=param)
        if "" in value:
            raise InvalidRequest(f"'{param}' holds an empty string.", param=param)
        if (num_chars := sum(map(len, value))) > MAX_PATTERN_CHARS:
            raise InvalidRequest(
                f"'{param}' has {num_chars} characters; at most {MAX_PATTERN_CHARS} are accepted.", param=param
            )
        return Grammar("choice", msgspec.json.encode(list(dict.fromkeys(value))).decode())
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATTERN_CHARS:
        raise InvalidRequest(f"'{param}' must be a string of 1 to {MAX_PATTERN_CHARS} characters.", param=param)
    if kind == "regex":
        check_pattern(value, param)
        return Grammar("regex", value)
    check_lark(value, param)
    return Grammar("lark", value)


def _schema(raw: Raw, param: str, *, strict: bool) -> Grammar:
    schema: Any = parse_schema(memoryview(raw), param)
    if isinstance(schema, str):  # Some clients send the schema as JSON text in a string.
        schema = parse_schema(schema.encode(), param)
    return schema_grammar(schema, strict=strict, param=param)


def _object(text: memoryview, param: str) -> dict[str, Raw]:
    try:
        return _members.decode(text)
    except ValueError:
        raise InvalidRequest(f"'{param}' must be an object.", param=param) from None


def _value(raw: Raw, param: str) -> Any:
    try:
        return _any_value.decode(memoryview(raw))
    except (ValueError, RecursionError):
        raise InvalidRequest(f"'{param}' is not valid.", param=param) from None
