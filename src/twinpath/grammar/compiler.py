"""Grammars -> what requests follow, in a thread of its own, with a cache."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from twinpath.errors import InvalidRequest, RequestError
from twinpath.grammar.completion import Completer, byte_vocabulary
from twinpath.grammar.hints import Hints
from twinpath.grammar.matcher import GrammarConstraint
from twinpath.grammar.source import plain, to_engine_text
from twinpath.grammar.vocabulary import Vocabulary
from twinpath.types import Grammar, Request

#: Compiled grammars kept, the least recently used given up first. A common one holds about a megabyte.
CACHED_GRAMMARS = 128
_NICENESS = 10

Done = Callable[[GrammarConstraint | RequestError], None]


def engine_limits() -> LLParserLimits:
    """What one grammar may cost, counted and not timed, so that the same grammar is always judged alike."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_items_in_row=10_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def compile_text(text: str, vocabulary: LLTokenizer) -> LLMatcher:
    """Raises: InvalidRequest with the engine's words."""
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=engine_limits())
    if matcher.is_error():
        raise InvalidRequest(f"The grammar cannot be used: {_brief(matcher.get_error())}", code="invalid_grammar")
    return matcher


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Prototypes, copied for each request."""

    matcher: LLMatcher
    byte_matcher: LLMatcher
    hints: Hints


class GrammarCompiler:
    """Implements `contracts.Constraints` for the engine's process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.num_compiled = self.num_hits = self.num_failed = 0
        self._vocabulary = vocabulary
        self._bytes = byte_vocabulary()
        self._cache: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar", initializer=_step_back)

    def prepare(self, request: Request, done: Done) -> None:
        """`done` is called once, at once when the grammar is known, else from the compiling thread."""
        grammar = request.grammar
        assert grammar is not None
        with self._lock:
            compiled = self._cache.get(grammar)
            if compiled is not None:
                self._cache.move_to_end(grammar)
                self.num_hits += 1
        if compiled is not None:
            done(self._constraint(compiled, request))
        else:
            self._thread.submit(self._compile_for, request, grammar, done)

    def close(self) -> None:
        """Grammars that wait are not compiled any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile_for(self, request: Request, grammar: Grammar, done: Done) -> None:
        try:
            with self._lock:
                compiled = self._cache.get(grammar)
            compiled = compiled or self._compile(grammar)
        except RequestError as error:
            self.num_failed += 1
            done(error)
            return
        except Exception as error:  # The caller waits for a word.
            self.num_failed += 1
            done(RequestError(f"The grammar cannot be compiled: {type(error).__name__}: {error}", status=500))
            return
        with self._lock:
            self._cache[grammar] = compiled
            while len(self._cache) > CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        done(self._constraint(compiled, request))

    def _compile(self, grammar: Grammar) -> _Compiled:
        matcher = compile_text(to_engine_text(grammar, self._vocabulary.split), self._vocabulary.engine)
        matcher.deep_copy().compute_bitmask()  # The first mask builds what all later ones share.
        byte_matcher = compile_text(to_engine_text(grammar, plain), self._bytes)
        self.num_compiled += 1
        return _Compiled(matcher, byte_matcher, Hints.of(grammar, lambda text: len(self._vocabulary.tokenize(text))))

    def _constraint(self, compiled: _Compiled, request: Request) -> GrammarConstraint:
        hints = compiled.hints
        return GrammarConstraint(
            compiled.matcher.deep_copy(),
            lambda: Completer(compiled.byte_matcher.deep_copy(), hints),
            self._vocabulary,
            hints,
            request.sampling.min_tokens,
        )


def _step_back() -> None:
    """Linux: threads have a niceness of their own, and the step's threads come first."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _brief(message: str) -> str:
    return " ".join(message.partition("<state>")[0].split())[:400]
