"""A run of pages from a sequence's start, with what is in them: found again by comparing tokens, without hashing."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.types import Int32s


@dataclass(slots=True, eq=False)
class Chain:
    """Pages in order, their tokens and keys.

    Shapes: tokens int32 [len(keys) * page_size]; pages int32 [num_pages <= len(keys)].
    """

    tokens: Int32s
    keys: list[bytes]
    pages: Int32s
    #: Namespace; pages are found by sequences of the same salt only.
    salt: str
    #: Leading pages of a shared template: not of this salt.
    num_foreign: int = 0

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    def num_common_pages(self, tokens: Int32s, num_tokens: int) -> int:
        """Pages that `tokens[:num_tokens]` begins with."""
        if not len(self.pages):
            return 0
        page_size = len(self.tokens) // len(self.keys)
        end = min(len(self.pages) * page_size, num_tokens)
        if end < page_size or self.tokens[0] != tokens[0]:
            return 0  # Of many chains most begin otherwise.
        differs = self.tokens[:end] != tokens[:end]
        first = int(differs.argmax())
        if differs[first]:
            end = first
        return end // page_size

    def cut(self, num_pages: int) -> Int32s:
        """Drop all pages but the first `num_pages`; the dropped ones."""
        dropped = self.pages[num_pages:]
        self.pages = self.pages[:num_pages]
        return dropped
