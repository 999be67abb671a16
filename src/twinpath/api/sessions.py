"""Sessions over HTTP: each caller sees and ends its own, under the names it gave them."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from twinpath.api.exchange import Exchange
from twinpath.api.identity import MAX_SESSION_CHARS
from twinpath.api.plain_routes import respond
from twinpath.api.ports import Replica
from twinpath.errors import RouteNotFound
from twinpath.ipc.messages import SessionCard


class SessionBody(Struct, kw_only=True):
    """One session, as answered. Times in seconds."""

    id: str
    object: str = "twinpath.session"
    turns: int
    #: Turns that wait or run now.
    active_turns: int
    #: Of the longest context that is kept, and KV pages of all.
    tokens: int
    pages: int
    age_s: float
    idle_s: float
    expires_in_s: float
    deleted: bool = False

    @classmethod
    def of(cls, card: SessionCard, *, deleted: bool = False) -> SessionBody:
        return cls(
            id=card.name,
            turns=card.num_turns,
            active_turns=card.num_active,
            tokens=card.num_tokens,
            pages=card.num_pages,
            age_s=round(card.age_s, 3),
            idle_s=round(card.idle_s, 3),
            expires_in_s=round(card.expires_in_s, 3),
            deleted=deleted,
        )


class SessionList(Struct, kw_only=True):
    object: str = "list"
    data: list[SessionBody]


class Sessions:
    """GET /v1/twinpath/sessions, GET and DELETE /v1/twinpath/sessions/{id}; an id may hold slashes."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        cards = await self._replica.holdings.sessions(Exchange.of(scope).caller.key_hash)
        await respond(send, msgspec.json.encode(SessionList(data=[SessionBody.of(card) for card in cards])))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, holdings = Exchange.of(scope).caller, self._replica.holdings
        # The caller's key is in the session's: no name reaches another's session.
        session = caller.session_key(scope["path_params"]["id"][:MAX_SESSION_CHARS])
        deleted = scope["method"] == "DELETE"
        if deleted:
            card = await holdings.end_session(session)
        else:
            card = next(iter(await holdings.sessions(caller.key_hash, session)), None)
        if card is None:
            raise RouteNotFound("There is no such session; see /v1/twinpath/sessions.")
        await respond(send, msgspec.json.encode(SessionBody.of(card, deleted=deleted)))
