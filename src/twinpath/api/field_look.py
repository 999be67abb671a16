"""Whether a request gives any of some fields, found out by one look: most requests give none of most fields."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest

#: One of each, with nothing in it but what must be.
_BARE = (ChatCompletionRequest(messages=[]), CompletionRequest(prompt=""))


class FieldLook:
    """A look at several fields. Those that an endpoint does not have count as absent."""

    def __init__(self, names: Collection[str]) -> None:
        self._looks: dict[type, tuple[Callable[[Any], object], object]] = {}
        for bare in _BARE:
            own = [name for name in bare.__struct_fields__ if name in names]
            read = attrgetter(*own) if own else _nothing
            self._looks[type(bare)] = read, read(bare)

    def finds_any(self, fields: ChatCompletionRequest | CompletionRequest) -> bool:
        """Whether one of the fields is there and not null. A raw one that says `null` counts as given."""
        read, absent = self._looks[type(fields)]
        return bool(read(fields) != absent)


def _nothing(fields: object) -> tuple[()]:
    return ()
