"""JSON-Schema-Test-Suite, draft 2020-12: every schema compiles or is refused with a path; what compiles is enforced.

Run with -s to see the table of keywords.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from twinpath.errors import InvalidRequest
from twinpath.grammar import GrammarChecker, SchemaRefused
from twinpath.grammar.compiler import compile_text, engine_limits
from twinpath.grammar.completion import byte_vocabulary
from twinpath.grammar.schema import SPACING, prepare_schema
from twinpath.grammar.source import plain, to_engine_text
from twinpath.types import Grammar

SUITE = Path(__file__).parent / "data" / "json_schema_test_suite.zip"
#: What the documentation lists as not enforced, and what only the whole of a schema decides.
MAY_BE_REFUSED = frozenset(
    (
        *("$dynamicAnchor", "$dynamicRef", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
        *("not", "if", "then", "else", "oneOf", "patternProperties", "format", "allOf", "multipleOf"),
    )
)
#: (file, group) refused for a keyword that is enforced otherwise: a value, a place or a meaning it does not have here.
SPECIAL = {
    ("anyOf", "anyOf with boolean schemas, all false"),  # nothing fits it
    ("boolean_schema", "boolean schema 'false'"),
    ("ref", "$ref to boolean schema false"),
    ("bignum", "maximum integer comparison"),  # beyond 2^63
    ("bignum", "minimum integer comparison"),
    ("bignum", "float comparison with high precision"),
    ("bignum", "float comparison with high precision on negative numbers"),
    ("ecmascript-regex", "ECMA 262 regex escapes control codes with \\c and upper letter"),
    ("ecmascript-regex", "ECMA 262 regex escapes control codes with \\c and lower letter"),
    ("defs", "validate definition against metaschema"),  # another document
    ("format-assertion", "schema that uses custom metaschema with format-assertion: false"),
    ("format-assertion", "schema that uses custom metaschema with format-assertion: true"),
    ("vocabulary", "schema that uses custom metaschema with with no validation vocabulary"),
    ("vocabulary", "ignore unrecognized optional vocabulary"),
}
#: Valid instances in a spelling that answers do not use: keys in another order, 1.0 for 1, strings against a `format`.
OTHER_SPELLINGS = frozenset({"allOf", "const", "enum", "type", "format", "float-overflow"})


@dataclass(frozen=True)
class Group:
    """One schema of the suite and its instances."""

    file: str
    name: str
    schema: Any
    cases: list[dict[str, Any]]


def read_suite() -> Iterator[Group]:
    with zipfile.ZipFile(SUITE) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                for group in json.loads(archive.read(name)):
                    yield Group(Path(name).stem, group["description"], group["schema"], group["tests"])


GROUPS = list(read_suite())


def compile_strictly(checker: GrammarChecker, schema: Any) -> LLMatcher:
    """As a strict request would have it, but with objects as open as the suite means them."""
    grammar = Grammar("json_schema", json.dumps(prepare_schema(schema, strict=True, param="p", close_objects=False)))
    checker.check(grammar, "p")
    return compile_text(to_engine_text(grammar, plain), byte_vocabulary())


def accepts(matcher: LLMatcher, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    follower = matcher.deep_copy()
    return follower.try_consume_tokens(list(text)) == len(text) and bool(follower.is_accepting())


@pytest.fixture(scope="module")
def compiled() -> list[tuple[Group, LLMatcher | SchemaRefused, float]]:
    """Every group with what became of its schema, and seconds of processor that took."""
    checker = GrammarChecker()
    found: list[tuple[Group, LLMatcher | SchemaRefused, float]] = []
    for group in GROUPS:
        begin = time.thread_time()
        outcome: LLMatcher | SchemaRefused
        try:
            outcome = compile_strictly(checker, group.schema)
        except SchemaRefused as refused:
            outcome = refused
        found.append((group, outcome, time.thread_time() - begin))
    return found


def test_every_schema_compiles_or_is_refused_with_a_path_in_a_second(compiled: list[Any]) -> None:
    assert len(compiled) == 416
    for group, outcome, seconds in compiled:
        assert seconds < 1.0, (group.file, group.name)
        if isinstance(outcome, SchemaRefused):
            assert f"'{outcome.path or '/'}'" in outcome.message


def test_no_invalid_instance_is_followed(compiled: list[Any]) -> None:
    followed = [
        (group.file, case["description"])
        for group, outcome, _ in compiled
        if not isinstance(outcome, SchemaRefused)
        for case in group.cases
        if not case["valid"] and accepts(outcome, case["data"])
    ]
    assert followed == []


def test_every_valid_instance_is_followed_but_for_other_spellings(compiled: list[Any]) -> None:
    missed = Counter(
        group.file
        for group, outcome, _ in compiled
        if not isinstance(outcome, SchemaRefused)
        for case in group.cases
        if case["valid"] and not accepts(outcome, case["data"])
    )
    assert set(missed) <= OTHER_SPELLINGS
    assert sum(missed.values()) == 23


def test_only_documented_keywords_are_refused(compiled: list[Any]) -> None:
    table: dict[str, Counter[str]] = {}
    for group, outcome, _ in compiled:
        row = table.setdefault(group.file, Counter())
        if not isinstance(outcome, SchemaRefused):
            row["accepted"] += 1
            continue
        keyword = outcome.path.rsplit("/", 1)[-1]
        row[f"refused for {keyword or 'the whole'}"] += 1
        remote = keyword == "$ref" or "nothing is fetched" in outcome.message
        assert keyword in MAY_BE_REFUSED or remote or (group.file, group.name) in SPECIAL, (group.name, outcome.message)
    for name, row in sorted(table.items()):
        print(f"{name:28s} {dict(row)}")
    print("accepted", sum(row["accepted"] for row in table.values()), "of", len(compiled))


def test_no_fewer_schemas_are_accepted_than_the_engine_alone_takes(compiled: list[Any]) -> None:
    vocabulary = byte_vocabulary()

    def takes(schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is True
        text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=SPACING)
        matcher = LLMatcher(vocabulary, text, log_level=0, limits=engine_limits())
        return not matcher.is_error() and any(matcher.compute_bitmask()) and not matcher.is_error()

    ours = {id(group) for group, outcome, _ in compiled if not isinstance(outcome, SchemaRefused)}
    library = {id(group) for group, _, _ in compiled if takes(group.schema)}
    for file in sorted({group.file for group, _, _ in compiled}):
        of_file = {id(group) for group, _, _ in compiled if group.file == file}
        print(f"{file:28s} engine alone {len(of_file & library):2d}, with our preparation {len(of_file & ours):2d}")
        assert len(of_file & ours) >= len(of_file & library), file
    print("accepted by the engine alone", len(library), "with our preparation", len(ours))
    assert library <= ours


def test_what_is_not_strict_is_only_refused_when_it_is_wrong() -> None:
    checker = GrammarChecker()
    refused = []
    for group in GROUPS:
        if not isinstance(group.schema, dict):
            continue
        try:
            schema = prepare_schema(group.schema, strict=False, param="p")
            checker.check(Grammar("json_schema", json.dumps(schema)), "p")
        except InvalidRequest as error:
            refused.append((group.file, group.name, error.message))
    print(*refused, sep="\n")
    assert len(refused) < 60
