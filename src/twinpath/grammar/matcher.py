"""One request's way through its grammar: token masks, and the close-out when its tokens run out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher

from twinpath.grammar.completion import Completer
from twinpath.grammar.hints import Hints
from twinpath.grammar.vocabulary import Vocabulary
from twinpath.types import Int32s

#: Bytes of completions looked at for each token left; few tokens are longer.
_TOKEN_BYTES = 16
#: A token without these opens nothing in JSON; within a string or a number it adds little.
_OPENING = (b"{", b"[", b",", b'"')
_CONTENT_TOKENS = 5
#: Completions longer than this are not looked for.
_MAX_COMPLETION_BYTES = 16 * 1024


class GrammarConstraint:
    """Implements `contracts.Constraint`.

    The close-out: `_completion` is some legal way to the end, checked often enough that it always fits the tokens left.
    When it fills them it is forced; when the token just sampled would make the end unreachable, that token is refused
    and the way that was still open is forced.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        completer: Callable[[], Completer],
        vocabulary: Vocabulary,
        hints: Hints,
        min_tokens: int = 0,
    ) -> None:
        """`matcher` at the beginning, taken over."""
        self.error: str | None = None
        self.closed_out = False
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._make_completer = completer
        self._completer: Completer | None = None
        self._before_last: Completer | None = None
        #: Text that the completer has not been told.
        self._unseen = bytearray()
        #: Most that one token adds to the way to the end, and itself.
        self._jump_tokens = hints.jump_tokens + vocabulary.most_openers + 1
        self._is_json = hints.is_json
        self._is_far = False
        self._min_tokens = min_tokens
        self._num_tokens = 0
        #: A legal way to the end, from where the matcher stands when `_is_fresh`; None: none was found yet.
        self._way: bytes | None = None
        self._is_fresh = False
        #: The way that is forced.
        self._completion: list[int] = []
        #: Searches in a row that found no way that fits.
        self._num_misses = 0
        #: Tokens of `_completion` that were forced so far.
        self._num_forced = 0
        #: What tokens may still add to the way to the end before it is looked at again.
        self._room = 0
        #: Looking for a way that was not found is put off for so many tokens.
        self._num_skipped = 0
        #: It is to be looked at with the next mask, where that waits for no one.
        self._must_look = True
        self._last_token: int | None = None

    @property
    def finished(self) -> bool:
        if self.closed_out:
            return self._num_forced == len(self._completion)
        return self.error is None and bool(self._matcher.is_stopped())

    def fill(self, words: Int32s, num_left: int) -> None:
        self._look_if_due(num_left)
        if self.error is not None or self.closed_out:
            words[:] = 0
            if self.error is None:
                _set(words, self._completion[self._num_forced])
            return
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            self._fail("the grammar is too complex for this answer")
            words[:] = 0
        elif self._num_tokens < self._min_tokens:
            self._withhold_end(words)

    def allows(self, token: int, num_left: int) -> bool:
        self._look_if_due(num_left)
        if self.error is not None:
            return False
        if self.closed_out:
            return token == self._completion[self._num_forced]
        if self._num_tokens < self._min_tokens and token in self._vocabulary.end_ids:
            return False
        # Where the grammar forces text, the mask has its first token alone and the matcher takes other spellings too.
        forced = self._matcher.compute_ff_tokens()
        if forced:
            return token == forced[0]
        return bool(self._matcher.validate_tokens([token]) == 1)

    def take_forced(self, most: int, num_left: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < most and self.error is None and not self.finished:
            forced = self._completion[self._num_forced :] if self.closed_out else self._matcher.compute_ff_tokens()
            for token in forced[: most - len(taken)]:
                if token in self._vocabulary.end_ids or not self.accept(token, num_left - len(taken) - 1):
                    return taken
                taken.append(token)
            if not forced:
                break
        return taken

    def accept(self, token: int, num_left: int) -> bool:
        if self.error is not None:
            return True
        if self.closed_out:
            self._num_forced += 1
            return True
        if not self._matcher.consume_token(token):
            self._fail("the answer cannot go on under its grammar")
            return True
        text = self._vocabulary.token_bytes(token)
        self._unseen += text
        self._last_token = token
        known = self._way
        if not self._matcher.is_stopped() and self._look_is_due(text):
            if known is None or self._is_far:
                self._must_look = True
            elif not self._fits(num_left) and self._closes_before(token, known, num_left):
                return False
        self._num_tokens += 1
        return True

    def _look_if_due(self, num_left: int) -> None:
        if self._must_look and self.error is None:
            self._must_look = False
            self._fits(num_left)

    def _look_is_due(self, text: bytes) -> bool:
        if self._way is not None and self._follow(self._way, text):
            self._room -= 1
        elif self._num_skipped:
            self._num_skipped -= 1
            return False
        else:
            opens = not self._is_json or any(mark in text for mark in _OPENING)
            self._room -= self._jump_tokens if opens else _CONTENT_TOKENS
        return self._room < 0

    def _follow(self, way: bytes, text: bytes) -> bool:
        """Whether the way leads on after `text`, less what that said of it, or as it is where a string goes on."""
        if self._is_fresh and way.startswith(text):
            self._way = way[len(text) :]
            return True
        plain = text.replace(b", ", b",").replace(b": ", b":").removeprefix(b" ")
        for rest in (way[len(plain) :] if plain != text and way.startswith(plain) else way, way):
            if self._leads(rest):
                self._way, self._is_fresh = rest, True
                return True
        self._is_fresh = False
        return False

    def _leads(self, way: bytes) -> bool:
        tokens = [*self._vocabulary.tokenize(way), self._vocabulary.end_ids[0]]
        return bool(self._matcher.validate_tokens(tokens) == len(tokens))

    def _fits(self, num_left: int) -> bool:
        """Whether a way to the end fits the tokens left; notes it, and forces it when it fills them."""
        way = self._way if self._is_fresh else self._search(num_left)
        completion = [] if way is None else self._vocabulary.tokenize(way)
        if way is None or len(completion) > num_left:
            # Perhaps there is none, and every look costs as much as a token: seldom, then.
            self._num_skipped, self._room = (1 << self._num_misses) - 1, 0
            self._num_misses += 1
            return False
        self._way, self._is_fresh, self._num_misses, self._num_skipped = way, True, 0, 0
        slack = num_left - len(completion)
        # Far from the end there is room for a token more, whatever it opens: the look can wait for the next mask.
        self._is_far = slack > 3 * self._jump_tokens
        self._room = slack - 2 * self._jump_tokens if self._is_far else 0
        if not slack and completion:
            self._close_out(completion)
        return True

    def _search(self, num_left: int) -> bytes | None:
        if self._completer is None:
            self._completer = self._make_completer()
        last = b"" if self._last_token is None else self._vocabulary.token_bytes(self._last_token)
        self._completer.feed(bytes(self._unseen.removesuffix(last)))
        self._before_last = self._completer.copy()
        self._completer.feed(last)
        self._unseen.clear()
        return self._complete(self._completer, num_left)

    def _complete(self, completer: Completer, num_left: int) -> bytes | None:
        way = completer.shortest(min(num_left * _TOKEN_BYTES, _MAX_COMPLETION_BYTES))
        return way if way is not None and self._leads(way) else None

    def _closes_before(self, token: int, known: bytes, num_left: int) -> bool:
        """Take back the token that left no way that fits, and force the one that was open before it.

        With room to spare the way was merely not found: then the token stays.
        """
        if num_left > len(self._vocabulary.tokenize(known)) + self._jump_tokens or self._before_last is None:
            return False
        self._matcher.rollback(1)
        way = known if self._leads(known) else self._complete(self._before_last, num_left + 1)
        completion = [] if way is None else self._vocabulary.tokenize(way)
        if way is None or len(completion) > num_left + 1:
            self._matcher.consume_token(token)
            return False
        self._close_out(completion)
        return True

    def _close_out(self, completion: list[int]) -> None:
        self.closed_out, self._completion, self._num_forced = True, completion, 0

    def _withhold_end(self, words: Int32s) -> None:
        kept = words.copy()
        for token in self._vocabulary.end_ids:
            kept.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        if kept.any():
            words[:] = kept

    def _fail(self, what: str) -> None:
        self.error = f"{what}: {_first_line(self._matcher.get_error())}"


def _set(words: Int32s, token: int) -> None:
    words.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
