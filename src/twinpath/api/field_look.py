"""Whether a request gives any of some fields, found out by one look: most requests give none of most fields."""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter

from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest

#: One of each, with nothing in it but what must be.
_BARE = (ChatCompletionRequest(messages=[]), CompletionRequest(prompt=""))


class FieldLook:
    """A look at two or more fields. Those that an endpoint does not have count as absent."""

    def __init__(self, names: Collection[str]) -> None:
        self._looks = {}
        for bare in _BARE:
            read = attrgetter(*(name for name in bare.__struct_fields__ if name in names))
            self._looks[type(bare)] = read, read(bare)

    def finds_any(self, fields: ChatCompletionRequest | CompletionRequest) -> bool:
        """Whether one of the fields is there and not null. A raw one that says `null` counts as given."""
        read, absent = self._looks[type(fields)]
        return bool(read(fields) != absent)
