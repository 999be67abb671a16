"""The prefix index: full pages found again by the chain of tokens that leads to their end."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from twinpath.kv.pages import PagePool
from twinpath.types import Int32s

#: 128 bits: a collision, which would serve another prompt's KV, needs ~2^64 pages; cheaper hashes are forgeable by
#: tenants.
_DIGEST_BYTES = 16


class PrefixKeys:
    """The chain of page keys of one sequence: key[i] names the tokens of pages 0..i, their order and the salt."""

    def __init__(self, page_size: int, salt: str) -> None:
        self._page_size = page_size
        self._root = self._parent = blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()
        self.keys: list[bytes] = []
        #: Leading pages that belong to no salt (a shared template's).
        self.num_foreign = 0

    def extend(self, tokens: Int32s, num_tokens: int) -> list[bytes]:
        """All keys of the full pages of `tokens[:num_tokens]`; earlier tokens must be those of earlier calls."""
        keys, size, parent = self.keys, self._page_size, self._parent
        first, end = len(keys) * size, num_tokens // size * size
        if first >= end:
            return keys
        data, page_bytes = tokens[first:end].tobytes(), size * tokens.itemsize
        for begin in range(0, len(data), page_bytes):
            parent = blake2b(parent + data[begin : begin + page_bytes], digest_size=_DIGEST_BYTES).digest()
            keys.append(parent)
        self._parent = parent
        return keys

    def at(self, index: int) -> bytes | None:
        """The key of a page, None when it is not made yet."""
        return self.keys[index] if index < len(self.keys) else None

    def start_over(self) -> None:
        """Forget all keys."""
        self.keys, self._parent, self.num_foreign = [], self._root, 0

    def adopt(self, keys: list[bytes], num_foreign: int) -> None:
        """Start over with keys that are known for the first pages. The first `num_foreign` pages were computed for all
        salts: what follows them is this salt's own again."""
        self.keys = keys
        self.num_foreign = min(num_foreign, len(keys))
        self._parent = keys[-1]
        if num_foreign >= len(keys):
            self._parent = blake2b(keys[-1] + self._root, digest_size=_DIGEST_BYTES).digest()


class PrefixCache:
    """key -> page, for pages whose KV is written. Holds no reference itself: idle pages live in the pool's order."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._key_to_page: dict[bytes, int] = {}
        self._page_to_key: list[bytes | None] = [None] * pool.num_pages
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        pool.listeners.append(self._evict)

    def __len__(self) -> int:
        return len(self._key_to_page)

    def find(self, keys: list[bytes], begin: int = 0) -> list[int]:
        """Pages of the longest known run of `keys[begin:]` from its start. They are not retained yet."""
        pages = []
        known = self._key_to_page
        for index in range(begin, len(keys)):
            page = known.get(keys[index])
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(self, keys: Iterable[bytes], pages: Iterable[int]) -> None:
        """Offer referenced, fully written pages. One whose key is known already stays its owner's own."""
        key_to_page, page_to_key, new = self._key_to_page, self._page_to_key, []
        for key, page in zip(keys, pages, strict=True):
            if key not in key_to_page and page_to_key[page] is None:
                key_to_page[key] = page
                page_to_key[page] = key
                new.append(page)
        if new:
            self._pool.mark_cached(new)

    def withdraw(self, page: int) -> None:
        """Undo `insert`, if it was done and nobody else uses the page: it is the caller's, or idle."""
        if self._page_to_key[page] is not None and self._pool.is_exclusive(page):
            self._pool.unmark_cached(page)
        elif self._pool.is_cold(page):
            self._pool.evict([page])

    def _evict(self, pages: list[int]) -> None:
        key_to_page, page_to_key = self._key_to_page, self._page_to_key
        for page in pages:
            key, page_to_key[page] = page_to_key[page], None
            assert key is not None, "a page that is no prefix lost its content"
            del key_to_page[key]

    def check_integrity(self) -> None:
        """Raise AssertionError unless index and pool agree on which pages are cached."""
        pages = [page for page, key in enumerate(self._page_to_key) if key is not None]
        assert len(self._key_to_page) == len(pages), "two keys share a page"
        assert all(self._page_to_key[page] == key for key, page in self._key_to_page.items()), "index is not one to one"
        assert pages == self._pool.cached_pages(), "index and pool disagree"
