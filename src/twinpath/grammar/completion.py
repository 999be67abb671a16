"""The shortest way to the end of an answer, found on bytes: a small vocabulary makes every look cheap."""

from __future__ import annotations

from bisect import bisect_left
from itertools import product

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from twinpath.grammar.hints import Hints

_END = 256
#: So few are compared by following each.
_FEW = 16
_ROLLOUT_BYTES = 64
#: States followed at once, and bytes tried from each: first those that patterns and formats are made of.
_BEAM = 4
_TRIALS_AT_ONCE = 500
_MOST_TRIALS = 5_000
_FAILURE_COSTS = 2_000
#: Legal bytes where text is free: only its length is missing, which no search need find.
_ANY = 128
_TRIED = b"a0cb@.-:/TZ1AP+_, x"
#: Forced stretches and choices that one completion may take: a few milliseconds.
_MAX_STEPS = 600
#: `multipleOf` has at most so many (`schema.MAX_MULTIPLE`).
_MOST_DIGITS = 3
#: Values, short first, for where JSON wants one.
_VALUES = (b"0", b'""', b"[]", b"{}", b"null", b"true", b"false")


class _Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_vocabulary() -> LLTokenizer:
    """For grammars whose control tokens are spelled as text."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=_END + 1, eos_token=[_END], slices=[])


class Completer:
    """Follows an answer in bytes and completes it. Greedy where the grammar leaves a choice: what it finds is always
    an answer of the language, and the shortest but for digits, patterns and alternatives of objects."""

    def __init__(self, matcher: LLMatcher, hints: Hints) -> None:
        """`matcher` over `byte_vocabulary`, at the beginning; it is taken over."""
        self._matcher = matcher
        self._hints = hints
        #: What there is of the string that is open, its quote included; of all output when that is not JSON.
        self._fragment = b""
        self._in_string = self._escaped = False
        self._in_number = False
        #: States that searches may still try, for all copies together: some patterns make each one dear.
        self._num_trials = [_MOST_TRIALS]
        #: The free text before the answer, until its marker has come.
        self._free: bytes | None = b"" if hints.marker and not hints.opener else None
        #: The first bytes, until they say whether there is free text.
        self._head: bytes | None = b"" if hints.opener else None

    def copy(self) -> Completer:
        """Another one at the same place."""
        copy = Completer(self._matcher.deep_copy(), self._hints)
        copy._fragment, copy._in_string, copy._escaped = self._fragment, self._in_string, self._escaped
        copy._num_trials = self._num_trials
        copy._free, copy._head, copy._in_number = self._free, self._head, self._in_number
        return copy

    def feed(self, output: bytes) -> None:
        """More of the answer."""
        self._matcher.try_consume_tokens(list(output))
        self._note(output)

    def shortest(self, limit_bytes: int) -> bytes | None:
        """What completes the answer; None when nothing of at most `limit_bytes` was found."""
        return self.copy()._follow(limit_bytes)

    def _follow(self, limit_bytes: int) -> bytes | None:
        out = bytearray()
        for _ in range(_MAX_STEPS):
            if self._matcher.is_accepting():
                return bytes(out)
            step = self._matcher.compute_ff_bytes() or self._choose()
            if not step or len(out) + len(step) > limit_bytes:
                return None
            if self._matcher.try_consume_tokens(list(step)) < len(step):
                return None
            self._note(step)
            out += step
        return None

    def _note(self, output: bytes) -> None:
        """Keep track of strings."""
        if self._head is not None:
            head, opener = self._head + output, self._hints.opener
            if len(head) < len(opener) and opener.startswith(head):
                self._head = head
                return
            self._head = None
            if head.startswith(opener):
                self._free, output = b"", head.removeprefix(opener)
        if self._free is not None:
            before, found, output = (self._free + output).partition(self._hints.marker)
            self._free = None if found else before[-len(self._hints.marker) :]
        if not self._hints.is_json:
            self._fragment += output
            return
        for byte in output:
            self._in_number = not self._in_string and byte in b"-.0123456789"
            if self._in_string:
                self._fragment += bytes([byte])
                self._in_string = byte != 0x22 or self._escaped
                self._escaped = byte == 0x5C and not self._escaped
            elif byte == 0x22:
                self._in_string, self._fragment, self._escaped = True, b'"', False

    def _choose(self) -> bytes | None:
        legal = _legal(self._matcher.compute_bitmask())
        if not legal:
            return None
        if self._free is not None:
            return self._hints.marker if self._fits(self._hints.marker) else None
        if not self._in_string and (closing := self._rest_of_closing(legal)):
            return closing
        if not self._hints.is_json:
            return self._rest_of(self._hints.constants) or self._search(b"") or self._by_trial(legal)
        if self._in_string:
            return self._first(legal, b'"') or self._inside_string(legal)
        if closer := self._first(legal, b"}],:"):
            return closer
        if self._in_number and (digits := self._digit(legal)):
            return digits
        for word in (*self._hints.keys, *_VALUES, *self._hints.constants):
            if word[0] in legal and self._fits(word):
                return word
        return self._digit(legal) or self._first(legal, b'[{"') or bytes(legal[:1])

    def _inside_string(self, legal: list[int]) -> bytes:
        one_more = (bytes([byte]) + b'"' for byte in b"a0 " if byte in legal)
        if enough := next((text for text in one_more if self._fits(text)), None):
            return enough
        words = (*self._hints.keys, *self._hints.constants)
        if rest := self._rest_of(words):
            return rest
        found = self._padding() if len(legal) >= _ANY else self._search(b'"')
        return found or self._first(legal, b"a0 ") or bytes(legal[:1])

    def _padding(self) -> bytes | None:
        """As many letters as a free string needs until it may end; the first ones where it needs more."""
        text = b"a" * _ROLLOUT_BYTES
        most = self._matcher.validate_tokens(list(text))

        def is_enough(num_bytes: int) -> bool:
            return bool(self._matcher.validate_tokens([*text[:num_bytes], ord('"')]) == num_bytes + 1)

        if not most or not is_enough(most):
            return text[:most] or None
        return text[: bisect_left(range(1, most), True, key=is_enough) + 1]

    def _search(self, end: bytes) -> bytes | None:
        """A short way to where `end` is legal ("": the language may end), breadth first over lengths. States that
        leave the same bytes open are taken for one within a length, so that loops and counted repeats both end."""
        if self._num_trials[0] <= 0:
            return None
        layer = [(b"", self._matcher.deep_copy())]
        seen: set[bytes] = set()
        least = self._num_trials[0] - _TRIALS_AT_ONCE
        for _ in range(_ROLLOUT_BYTES):
            fresh: dict[bytes, tuple[bytes, LLMatcher]] = {}
            for text, matcher in layer:
                for byte in _few(matcher.compute_bitmask()):
                    if self._num_trials[0] <= max(least, 0):
                        self._num_trials[0] -= _FAILURE_COSTS  # A long minLength cannot be searched through.
                        return None
                    self._num_trials[0] -= 1
                    child = matcher.deep_copy()
                    if child.try_consume_tokens([byte]) != 1:
                        continue
                    step = bytes([byte])
                    while not child.is_accepting() and (forced := child.compute_ff_bytes()):
                        if child.try_consume_tokens(list(forced)) < len(forced):
                            break
                        step += forced
                    if child.is_accepting() or (end and child.validate_tokens(list(end)) == len(end)):
                        return text + step
                    fresh.setdefault(child.compute_bitmask(), (text + step, child))
            # New ones first; some of the rest, since a counted repeat shows the same bytes again and again.
            ordered = sorted(fresh.items(), key=lambda item: (item[0] in seen, len(item[1][0])))[:_BEAM]
            seen.update(mask for mask, _ in ordered)
            layer = [state for _, state in ordered]
        return None

    def _rest_of_closing(self, legal: list[int]) -> bytes | None:
        """What is left of the closing; its first bytes may be those of another call, and behind us."""
        closing = self._hints.closing
        tails = (closing[start:] for start in range(len(closing)) if closing[start] in legal)
        return next((tail for tail in tails if self._fits(tail)), None)

    def _first(self, legal: list[int], wanted: bytes) -> bytes | None:
        return next((bytes([byte]) for byte in wanted if byte in legal), None)

    def _fits(self, text: bytes) -> bool:
        return bool(self._matcher.validate_tokens(list(text)) == len(text))

    def _rest_of(self, words: tuple[bytes, ...]) -> bytes | None:
        """The rest of a word that the open string begins."""
        length = len(self._fragment)
        for word in words:
            if len(word) > length and word.startswith(self._fragment) and self._fits(word[length:]):
                return word[length:]
        return None

    def _digit(self, legal: list[int]) -> bytes | None:
        """Digits after which the number may end, if there are a few: a multiple's last three decide."""
        digits = [bytes([byte]) for byte in b"0123456789" if byte in legal]
        if not digits:
            return None
        for length in range(_MOST_DIGITS):
            for more in product(b"0123456789", repeat=length):
                for digit in digits:
                    if self._may_end(text := digit + bytes(more)):
                        return text
        return digits[0]

    def _may_end(self, text: bytes) -> bool:
        """Whether a value is over after `text`; asked of the first bytes of what may follow one."""
        tokens = list(text)
        return any(self._matcher.validate_tokens([*tokens, end]) > len(tokens) for end in (*b",}]", _END))

    def _by_trial(self, legal: list[int]) -> bytes:
        """Of few bytes the one from which the end is nearest; of many, one that is easy to read."""
        if len(legal) > _FEW:
            return self._first(legal, b"a0 ") or bytes(legal[:1])
        return min((bytes([byte]) for byte in legal), key=self._distance)

    def _distance(self, byte: bytes) -> int:
        matcher = self._matcher.deep_copy()
        step, length = byte, 0
        while length < _ROLLOUT_BYTES and matcher.try_consume_tokens(list(step)) == len(step):
            length += len(step)
            if matcher.is_accepting():
                return length
            step = matcher.compute_ff_bytes()
            if not step:
                legal = _legal(matcher.compute_bitmask())
                if not legal:
                    break
                step = bytes([legal[-1]])
        return 2 * _ROLLOUT_BYTES


def _legal(mask: bytes) -> list[int]:
    """Bytes that may come next."""
    legal: list[int] = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:_END]).tolist()
    return legal


def _few(mask: bytes) -> list[int]:
    legal = _legal(mask)
    if len(legal) <= _FEW:
        return legal
    return list(dict.fromkeys((*(byte for byte in _TRIED if byte in legal), legal[0], legal[-1])))
