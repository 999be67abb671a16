"""llguidance and xgrammar on the same schemas, instances and vocabulary: time to compile, time per mask, coverage."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from twinpath.errors import InvalidRequest
from twinpath.grammar.compiler import compile_text
from twinpath.grammar.schema import SPACING
from twinpath.grammar.vocabulary import Vocabulary
from twinpath.text.text_model import TextModel


class Matcher(Protocol):
    """One instance being followed."""

    def mask(self) -> None: ...

    def accept(self, token: int) -> bool: ...

    def at_end(self) -> bool: ...


class Contestant(Protocol):
    """`compile` raises ValueError for a schema that it refuses."""

    def compile(self, schema: Any) -> Any: ...

    def matcher(self, compiled: Any) -> Matcher: ...


class LlGuidance:
    """Raw: without our walk, so that its own coverage is seen."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, schema: Any) -> Any:
        from llguidance import LLMatcher

        if not isinstance(schema, dict):
            raise ValueError("not an object")
        text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=SPACING)
        try:
            return compile_text(text, self._vocabulary.engine)
        except InvalidRequest as error:
            raise ValueError(error.message) from None

    def matcher(self, compiled: Any) -> Matcher:
        return _LlMatcher(compiled.deep_copy(), self._vocabulary.size)


class _LlMatcher:
    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._words = np.empty(-(-size // 32), np.int32)

    def mask(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def at_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class XGrammar:
    """With the same spacing where it can: no blanks of its own, objects open as JSON Schema says."""

    def __init__(self, text: TextModel, size: int) -> None:
        import xgrammar

        tokens = text.tokenizer
        vocabulary = [tokens.token_bytes(i) for i in range(tokens.vocab_size)]
        info = xgrammar.TokenizerInfo(vocabulary, vocab_size=size, stop_token_ids=list(text.stop_token_ids))
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._size, self._end = size, text.stop_token_ids[0]

    def compile(self, schema: Any) -> Any:
        try:
            return self._compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        except Exception as error:
            raise ValueError(str(error)) from None

    def matcher(self, compiled: Any) -> Matcher:
        return _XMatcher(self._xgrammar.GrammarMatcher(compiled), self._size, self._end)


class _XMatcher:
    def __init__(self, matcher: Any, size: int, end: int) -> None:
        self._matcher, self._end = matcher, end
        self._words = np.empty((1, -(-size // 32)), np.int32)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._words)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def at_end(self) -> bool:
        return self.accept(self._end)


def compare(text: TextModel, suite: Path | None, agent_schemas: list[Any]) -> dict[str, Any]:
    """Contestant -> its figures; xgrammar only where it is installed."""
    size = text.tokenizer.vocab_size
    vocabulary = Vocabulary(text.tokenizer, size, text.stop_token_ids, text.tokenizer.encode)
    contestants: dict[str, Contestant] = {"llguidance": LlGuidance(vocabulary)}
    if importlib.util.find_spec("xgrammar") is not None:
        try:
            contestants["xgrammar"] = XGrammar(text, size)
        except ImportError as error:  # Of something that it needs and does not bring.
            print(f"xgrammar is installed but cannot be imported ({error}): left out", file=sys.stderr)
    found = {}
    for name, contestant in contestants.items():
        found[name] = {"agent": _agent(contestant, agent_schemas, vocabulary)}
        if suite is not None:
            found[name]["suite"] = _coverage(contestant, suite, vocabulary)
    return found


def _agent(contestant: Contestant, schemas: list[Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Schemas of the size that agents send, each compiled afresh and followed through one instance."""
    compile_ms: list[float] = []
    mask_us: list[float] = []
    for schema in schemas:
        begin = time.perf_counter()
        compiled = contestant.compile(schema)
        compile_ms.append((time.perf_counter() - begin) * 1e3)
        instance = json.dumps(_instance(schema), separators=(",", ":"))
        followed, times = _follow(contestant.matcher(compiled), vocabulary.tokenize(instance.encode()))
        assert followed, instance
        mask_us += times
    return {"compile_ms": _spread(compile_ms), "mask_us": _spread(mask_us), "num_masks": len(mask_us)}


def _coverage(contestant: Contestant, suite: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    counts = dict.fromkeys(("schemas", "accepted", "valid", "valid_followed", "invalid", "invalid_followed"), 0)
    compile_ms: list[float] = []
    for group in _groups(suite):
        counts["schemas"] += 1
        begin = time.perf_counter()
        try:
            compiled = contestant.compile(group["schema"])
        except ValueError:
            continue
        finally:
            compile_ms.append((time.perf_counter() - begin) * 1e3)
        counts["accepted"] += 1
        for case in group["tests"]:
            kind = "valid" if case["valid"] else "invalid"
            instance = json.dumps(case["data"], separators=(",", ":"), ensure_ascii=False)
            counts[kind] += 1
            followed, _ = _follow(contestant.matcher(compiled), vocabulary.tokenize(instance.encode(errors="replace")))
            counts[f"{kind}_followed"] += followed
    return {**counts, "compile_ms": _spread(compile_ms)}


def _groups(suite: Path) -> Iterable[dict[str, Any]]:
    for path in sorted(suite.glob("*.json")):
        yield from json.loads(path.read_text())


def _follow(matcher: Matcher, tokens: list[int]) -> tuple[bool, list[float]]:
    """Whether the matcher goes along to the end, and microseconds per mask."""
    times = []
    for token in tokens:
        begin = time.perf_counter()
        matcher.mask()
        times.append((time.perf_counter() - begin) * 1e6)
        if not matcher.accept(token):
            return False, times
    return matcher.at_end(), times


def _instance(schema: Any) -> Any:
    """Some value of a schema of ours, with every property."""
    if "enum" in schema:
        return schema["enum"][-1]
    match schema["type"]:
        case "object":
            return {name: _instance(child) for name, child in schema["properties"].items()}
        case "array":
            return [_instance(schema["items"])] * max(schema.get("minItems", 0), 2)
        case "string":
            return "An example of text"[: schema.get("maxLength", 99)]
        case "integer":
            return schema.get("minimum", 0) + 7
    return 12.5


def _spread(values: list[float]) -> dict[str, float]:
    p50, p99, most = np.percentile(values, [50, 99, 100])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(float(most), 3)}
