"""`python docs/field_tables.py`: docs/fields.md, made from the schemas that check requests. A test compares the two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twinpath.api.anthropic.schemas import REFUSED_VALUES as MESSAGES_REFUSED
from twinpath.api.normalize import NEUTRAL_VALUES
from twinpath.api.openapi import openapi_document
from twinpath.api.responses_api.schemas import REFUSED_VALUES as RESPONSES_REFUSED

PAGE = Path(__file__).with_name("fields.md")
MODEL = "smollm2-135m"
Schema = dict[str, Any]

#: Request struct -> its endpoint, and the fields that are refused unless they ask for nothing.
ENDPOINTS: dict[str, tuple[str, Mapping[str, tuple[Any, ...]]]] = {
    "ChatCompletionRequest": ("POST /v1/chat/completions", NEUTRAL_VALUES),
    "CompletionRequest": ("POST /v1/completions", NEUTRAL_VALUES),
    "ResponsesRequest": ("POST /v1/responses", RESPONSES_REFUSED),
    "MessagesRequest": ("POST /v1/messages", MESSAGES_REFUSED),
    "CountTokensRequest": ("POST /v1/messages/count_tokens", MESSAGES_REFUSED),
    "TokenizeRequest": ("POST /tokenize", {}),
    "DetokenizeRequest": ("POST /detokenize", {}),
}
#: Read, without effect on the answer.
ACCEPTED = {
    "ChatCompletionRequest": {"request_id", "messages[].tool_calls[].type"},
    "CompletionRequest": {"request_id"},
    "ResponsesRequest": {"safety_identifier", "input[].id", "text.verbosity", "reasoning.summary"},
    "MessagesRequest": {"output_config.effort", "thinking.budget_tokens"},
    "CountTokensRequest": {"output_config.effort", "thinking.budget_tokens"},
    "TokenizeRequest": set(),
    "DetokenizeRequest": set(),
}
HEAD = """\
# Request fields

Made by `python docs/field_tables.py` from the schemas that check requests; what the fields mean is in [api.md](api.md).

**yes** honoured · **accepted** read, no effect on the answer · **400** refused unless it has one of the values named.
`null` is as if absent everywhere, an integer may be written `82.0`, and a field that is not listed is ignored.
"""


def support(struct: str, path: str) -> str:
    """yes, accepted or 400, of one field."""
    top, neutral = path.split(".")[0].split("[")[0], ENDPOINTS[struct][1]
    if top in neutral:
        return "400"
    return "accepted" if path in ACCEPTED[struct] else "yes"


def rows(struct: str, schemas: dict[str, Schema]) -> Iterator[tuple[str, str, str]]:
    """Path, kind and support of every field of a struct, nested ones after their parent."""
    required = set(schemas[struct].get("required", ()))
    for path, schema in _walk(schemas[struct], schemas, "", ()):
        kind = "the served name" if path == "model" else _kind(schema, schemas)
        if support(struct, path) == "400":
            values = [json.dumps(value) for value in ENDPOINTS[struct][1][path]]
            kind = f"only {', '.join(f'`{value}`' for value in values)}" if values else ""
        yield path + (" (required)" if path in required else ""), kind, support(struct, path)


def _walk(
    schema: Schema, schemas: dict[str, Schema], prefix: str, above: tuple[str, ...]
) -> Iterator[tuple[str, Schema]]:
    for name, inner in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, inner
        for mark, ref in _refs(inner):
            if ref not in above:
                yield from _walk(schemas[ref], schemas, f"{path}{mark}.", (*above, ref))


def _refs(schema: Schema) -> Iterator[tuple[str, str]]:
    """Structs behind a field, with `[]` where they are a list's items."""
    if "$ref" in schema:
        yield "", schema["$ref"].rpartition("/")[2]
    for option in schema.get("anyOf", ()):
        yield from _refs(option)
    if isinstance(schema.get("items"), dict):
        yield from (("[]" + mark, ref) for mark, ref in _refs(schema["items"]))


def _kind(schema: Schema, schemas: dict[str, Schema]) -> str:
    """The values a field may have, for people."""
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
    if "anyOf" in schema:
        kinds = [_kind(option, schemas) for option in schema["anyOf"] if option.get("type") != "null"]
        # Integers may be written as floats; that is said once, above.
        kinds = [kind for kind in kinds if "number" not in kind or kind.replace("number", "integer") not in kinds]
        return " or ".join(dict.fromkeys(filter(None, kinds)))
    if "$ref" in schema:
        return "object"
    kind = schema.get("type", "any JSON")
    if kind == "array":
        items = _kind(schema.get("items") or {}, schemas)
        return f"list of {items}{_range(schema, 'minItems', 'maxItems')}"
    return f"{kind}{_range(schema, 'minimum', 'maximum')}{_range(schema, 'minLength', 'maxLength')}"


def _range(schema: Schema, low: str, high: str) -> str:
    """`, 0..2` or nothing; limits of 64-bit integers are not worth a word."""
    exclusive = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
    least, most = (schema.get(name, schema.get(exclusive.get(name, ""))) for name in (low, high))
    least, most = (None if value is not None and abs(value) >= 2**62 else value for value in (least, most))
    if low == "minLength" and most is None:
        return ", not empty" if least else ""
    if low == "minItems" and most is None:
        return ""
    if least is None and most is None:
        return ""
    brackets = ("above " if exclusive.get(low) in schema else "") + ("" if least is None else f"{least:g}")
    if most is None:
        return f", {brackets} or more" if "above" not in brackets else f", {brackets}"
    unit = {"maxItems": " items", "maxLength": " characters"}.get(high, "")
    return f", {brackets}..{most:g}{unit}" if brackets else f", up to {most:g}{unit}"


def page() -> str:
    """The whole page."""
    schemas = json.loads(openapi_document(MODEL))["components"]["schemas"]
    parts = [HEAD]
    for struct, (endpoint, _) in ENDPOINTS.items():
        lines = [f"## {endpoint}", "", "| field | | values |", "|---|---|---|"]
        lines += [f"| `{path}` | {status} | {kind} |" for path, kind, status in rows(struct, schemas)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts).replace(" (required)`", "` (required)")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
