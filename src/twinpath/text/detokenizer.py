"""Token ids -> text, a few at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence


class Detokenizer:
    """Feeds on ids, yields the text that is certain.

    Invariant: the joined results equal the decoding of all ids at once. Bytes of a character that is not complete are
    held back; when the stream ends they are dropped. U+FFFD stands only for bytes that can no longer become a
    character.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        skipped_ids: Collection[int] = frozenset(),
        strip_leading_space: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._strip = strip_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` complete; may be empty."""
        data = bytearray()
        for token_id in ids:  # One, nearly always.
            if token_id not in self._skipped_ids:
                data += self._token_bytes(token_id)
        text = self._decoder.decode(data)
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """End of the stream: an incomplete character is dropped, so this is always empty; the decoder starts anew."""
        self._decoder.reset()
        return ""
