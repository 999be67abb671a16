"""Text -> token ids and token ids -> bytes, over the `tokenizers` library.

Two ways in: `encode` takes text as text (a control token's spelling stays plain characters), `encode_prompt` recognises
control tokens and adds the model's BOS, as raw completions want it. The way out goes through bytes, one token at a
time, so that a character split over tokens is never mistaken for damage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import tokenizers
from tokenizers.models import WordLevel

from twinpath.text.detokenizer import Detokenizer
from twinpath.text.words import MAX_CHARS, WordCache, goes_word_by_word

_UNKNOWN = "\ufffd"
#: Short segments repeat in every request: what a template writes between messages, system prompts, few-word turns.
CACHE_ENTRIES = 4096
CACHED_CHARS = 1024
#: Control tokens up to which an expression of alternatives is faster than the library's automaton.
_MAX_ALTERNATIVES = 32
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte: character -> byte.

    Source: openai/gpt-2 `encoder.py`, bytes_to_unicode.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


@dataclass(frozen=True, slots=True)
class TokenizerRules:
    """What the library's object does not tell."""

    #: How a vocabulary entry spells its bytes: GPT-2's byte alphabet, or SentencePiece's `▁` and `<0x0A>`.
    spelling: Literal["byte_level", "sentencepiece"]
    #: Prepended by `encode_prompt` and `add_bos`; None: the model wants none.
    bos_id: int | None = None
    #: Rows of the model's embedding; ids past the tokeniser's own vocabulary decode to nothing.
    vocab_size: int = 0
    #: SentencePiece's dummy prefix, a space put before text: before every segment, as the original does for every piece
    #: of text it is given, or before the first one only and where none is yet, as Metaspace's "first" scheme does.
    dummy_prefix: Literal["none", "first", "every"] = "none"
    #: Decoding a whole text takes one leading space away again.
    strips_leading_space: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text, or one control token (then `token_id` is set)."""

    text: str
    token_id: int | None = None


class Tokenizer:
    """Thread-safe once built: nothing in it changes but bounded caches."""

    def __init__(self, backend: tokenizers.Tokenizer, rules: TokenizerRules) -> None:
        """`backend` is taken over: its special tokens are switched to plain text, segmentation is done here."""
        backend.encode_special_tokens = True
        self._backend = backend
        self.rules = rules
        added = backend.get_added_tokens_decoder()
        self.special_tokens: dict[str, int] = {token.content: i for i, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_tokens.values())
        self._added = {i: token.content for i, token in added.items()}
        # "Unknown" may be a control token by type, yet it is what text that cannot be spelled becomes.
        self._forbidden_ids = self.special_ids - {_unknown_id(backend)}
        cut = [token for token in added.values() if token.special and len(token.content) > 1]
        self._segmenter = _build_segmenter(cut)
        self._borders = _border_pattern(cut)
        self.vocab_size = max(rules.vocab_size, backend.get_vocab_size())
        self._spell: Callable[[str], bytes] = (
            _byte_speller() if rules.spelling == "byte_level" else _sentencepiece_bytes
        )
        self._bytes: dict[int, bytes] = {}
        is_spelled_out = rules.spelling == "byte_level" and goes_word_by_word(backend)
        self._words = WordCache(self._encode_all) if is_spelled_out else None
        self._encode_short = lru_cache(CACHE_ENTRIES)(self._encode_plain)

    @property
    def bos_id(self) -> int | None:
        return self.rules.bos_id

    def warm_up(self) -> None:
        """Learn the vocabulary's own words, so that the first prompts are encoded as fast as later ones."""
        if self._words is not None:
            alphabet = byte_alphabet()
            space = next(character for character, byte in alphabet.items() if byte == ord(" "))
            words = [token.removeprefix(space) for token in self._backend.get_vocab() if token.startswith(space)]
            self._words.fill([word for word in words if word.isascii()])

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Ids of `text` as plain text: no control token can come of it, whatever it spells."""
        ids = [self.rules.bos_id] if add_bos and self.rules.bos_id is not None else []
        return ids + self._encode_text(text, first=True)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw completion prompt: control tokens are recognised, BOS is added once when the model wants it."""
        ids = self.encode_segments(self.split_special(text))
        bos = self.rules.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of segments as they are: only those that are control tokens become one."""
        ids: list[int] = []
        for index, segment in enumerate(segments):
            if segment.token_id is None:
                ids += self._encode_text(segment.text, first=index == 0)
            else:
                ids.append(segment.token_id)
        return ids

    def split_special(self, text: str) -> list[Segment]:
        """Cut `text` at the control tokens it spells, leftmost and longest first."""
        return list(self._split(well_formed(text)))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`: what a `Detokenizer` yields over the same ids, so streams and one-shot answers agree."""
        return self.detokenizer(skip_special=skip_special).push(ids)

    def detokenizer(
        self, *, skip_special: bool = True, continuation: bool = False, shown_ids: Collection[int] = ()
    ) -> Detokenizer:
        """A fresh incremental decoder. `continuation`: the text goes on after a prompt, so a leading space is meant.
        `shown_ids`: control tokens that are not left out."""
        strip = self.rules.strips_leading_space and not continuation
        skipped = self.special_ids.difference(shown_ids) if skip_special else frozenset()
        return Detokenizer(self.token_bytes, skipped_ids=skipped, strip_leading_space=strip)

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token; a control token's are its spelling, an id outside the vocabulary has none."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """For people: the token's text, bytes that are not UTF-8 replaced."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_id(self, spelling: str) -> int | None:
        """Id of a vocabulary entry as it is spelled in the vocabulary."""
        found: int | None = self._backend.token_to_id(spelling)
        return found

    def _compute_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        spelling = self._backend.id_to_token(token_id)
        return b"" if spelling is None else self._spell(spelling)

    def _encode_text(self, text: str, *, first: bool) -> list[int]:
        text = well_formed(text)
        if not text:
            return []
        text = self._prefixed(text, first)
        return list(self._encode_short(text)) if len(text) <= CACHED_CHARS else self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        if self._words is not None and len(text) <= MAX_CHARS and text.isascii():
            return self._words.encode(text)
        return self._encode_all([text])[0]

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        # The batch call lets other threads run meanwhile; the plain one holds the interpreter.
        found = [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [ids if self._forbidden_ids.isdisjoint(ids) else self._without_special(ids) for ids in found]

    def _prefixed(self, text: str, first: bool) -> str:
        scheme = self.rules.dummy_prefix
        if scheme == "every" or (scheme == "first" and first and not text.startswith((" ", "▁"))):
            return " " + text
        return text

    def _without_special(self, ids: list[int]) -> list[int]:
        """Some vocabularies let merges arrive at a control token's entry: spell those out by characters."""
        plain: list[int] = []
        for token_id in ids:
            if token_id not in self._forbidden_ids:
                plain.append(token_id)
                continue
            for encoding in self._backend.encode_batch_fast(list(self._added[token_id]), add_special_tokens=False):
                plain += [i for i in encoding.ids if i not in self._forbidden_ids]
        return plain

    def _split(self, text: str) -> Iterator[Segment]:
        if not text:
            return
        if self._borders is not None:
            for part in self._borders.split(text):
                if part:
                    yield Segment(part, self.special_tokens.get(part))
            return
        # The batch call lets other threads run meanwhile, as in `_encode_plain`.
        encoding = self._segmenter.encode_batch([text], add_special_tokens=False)[0]
        for spelling, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            yield Segment(text[start:end], self.special_tokens.get(spelling))


def well_formed(text: str) -> str:
    """`text` with lone surrogates (JSON can spell them, UTF-8 cannot) replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _unknown_id(backend: tokenizers.Tokenizer) -> int | None:
    spelling = getattr(backend.model, "unk_token", None)
    found: int | None = backend.token_to_id(spelling) if isinstance(spelling, str) else None
    return found


def _build_segmenter(special: Sequence[tokenizers.AddedToken]) -> tokenizers.Tokenizer:
    """A tokeniser that knows the control tokens only: all text between two of them is one unknown word.

    The library finds added tokens with one automaton, in linear time however many there are (Gemma has 6,249).
    """
    segmenter = tokenizers.Tokenizer(WordLevel({_UNKNOWN: 0}, unk_token=_UNKNOWN))
    segmenter.add_special_tokens(list(special))
    return segmenter


def _border_pattern(special: Sequence[tokenizers.AddedToken]) -> re.Pattern[str] | None:
    """The same cuts as an expression, where few plain tokens make that the faster way."""
    if not 0 < len(special) <= _MAX_ALTERNATIVES or any(t.lstrip or t.rstrip or t.single_word for t in special):
        return None
    longest_first = sorted((token.content for token in special), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


def _byte_speller() -> Callable[[str], bytes]:
    alphabet = byte_alphabet()
    # Characters that stand for no byte become one that Latin-1 has not.
    table = {code: "\uffff" for code in range(256)} | {ord(char): chr(byte) for char, byte in alphabet.items()}

    def spell(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return spell


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes.fromhex(byte[1])
    return token.replace("▁", " ").encode()
