"""Earlier responses and their conversations, for `previous_response_id`: bounded, the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from twinpath.api.responses_api.schemas import InputItem
from twinpath.errors import InvalidRequest, RequestError

_encoder = msgspec.json.Encoder()
_items = msgspec.json.Decoder(list[InputItem])


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response as it was answered, and the conversation up to and with it; both as JSON."""

    body: bytes
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.conversation)


class ResponseStore:
    """In memory, for one process: what was dropped, or came before a restart, is a clear refusal.

    Keys hold the caller's, so that nobody reads another's conversation.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, caller: str, response_id: str, body: bytes, items: list[InputItem]) -> None:
        """Keep a finished response; one that is larger than the whole store is not kept."""
        stored = StoredResponse(body, _encoder.encode(items))
        self._stored[caller, response_id] = stored
        self._num_bytes += stored.num_bytes
        while self._num_bytes > self._max_bytes:
            _, dropped = self._stored.popitem(last=False)
            self._num_bytes -= dropped.num_bytes

    def conversation(self, caller: str, response_id: str) -> list[InputItem]:
        """Raises: InvalidRequest when it is not there (any more)."""
        stored = self._stored.get((caller, response_id))
        if stored is None:
            raise InvalidRequest(
                f"Previous response with id '{response_id[:80]}' is not stored here (any more). Send the whole "
                "conversation in 'input'.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        self._stored.move_to_end((caller, response_id))
        return _items.decode(stored.conversation)

    def body(self, caller: str, response_id: str) -> bytes:
        """Raises: RequestError 404."""
        return self._find(caller, response_id).body

    def delete(self, caller: str, response_id: str) -> None:
        """Raises: RequestError 404."""
        self._num_bytes -= self._find(caller, response_id).num_bytes
        del self._stored[caller, response_id]

    def _find(self, caller: str, response_id: str) -> StoredResponse:
        stored = self._stored.get((caller, response_id))
        if stored is None:
            raise RequestError(f"Response with id '{response_id[:80]}' is not stored here.", status=404)
        return stored
