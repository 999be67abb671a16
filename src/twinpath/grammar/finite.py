"""Has a schema an instance that ends? `{"required": ["a"], "properties": {"a": {"$ref": "#"}}}` has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

#: Rounds over all nodes; a chain of references that needs more is taken to end.
_MAX_ROUNDS = 64


def resolve(root: Any, reference: str) -> Any:
    """What a local pointer (`#/...`) names; None when nothing."""
    node = root
    for part in reference[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def has_finite_instance(root: dict[str, Any], nodes: Iterable[dict[str, Any]]) -> bool:
    """By the least fixed point over `nodes`, all of the schema's. Only what forces nesting is looked at."""
    pending = list(nodes)[::-1]
    # Not known to end; what is not among the nodes is not looked at.
    unknown = {id(node) for node in pending}
    for _ in range(_MAX_ROUNDS):
        left = [node for node in pending if not _ends(node, root, unknown)]
        if id(root) not in unknown:
            return True
        if len(left) == len(pending):
            return False
        pending = left
    return True


def _ends(node: dict[str, Any], root: Any, unknown: set[int]) -> bool:
    """Whether `node` ends by what is known of others; then it is `unknown` no more."""

    def ends(child: Any) -> bool:
        return id(child) not in unknown

    def all_end() -> bool:
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            target = resolve(root, reference) if reference in ("#", "#/") or reference.startswith("#/") else None
            if not ends(target):
                return False
        if not all(map(ends, node.get("allOf", ()))):
            return False
        return all(any(map(ends, node[key])) for key in ("anyOf", "oneOf") if node.get(key))

    if "const" not in node and "enum" not in node and not (all_end() and all(map(ends, _forced(node)))):
        return False
    unknown.discard(id(node))
    return True


def _forced(node: dict[str, Any]) -> list[Any]:
    """Schemas of the parts that every instance has."""
    properties, required = node.get("properties"), node.get("required")
    if node.get("type") == "object" and isinstance(properties, dict) and isinstance(required, list):
        return [properties[name] for name in required if name in properties]
    least = node.get("minItems", 0)
    if node.get("type") == "array" and isinstance(least, int | float) and least > 0:
        prefix = node.get("prefixItems", [])
        return [*prefix[: int(least)], *([node["items"]] if least > len(prefix) and "items" in node else [])]
    return []
