"""One HTTP exchange as it goes through the door: its ids, its caller, what became of it. Lives in `scope["state"]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from starlette.types import Scope

from twinpath.api.envelope import Headers
from twinpath.api.headers import header, new_nonce, request_id
from twinpath.api.identity import ANYBODY, Caller
from twinpath.api.turn import TurnStats


@dataclass(slots=True)
class Exchange:
    """Filled in on the way; read once, for the log line."""

    request_id: str
    method: str
    path: str
    #: Random hex, the exchange's own: what ids are made of.
    nonce: str
    started_at: float = field(default_factory=monotonic)
    #: When the last byte of the body was in: latencies count from here.
    body_at: float = 0.0
    num_body_bytes: int = 0
    caller: Caller = ANYBODY
    #: Sent with whatever the answer is.
    headers: Headers = field(default_factory=list)
    #: 0 until the response started; 499 when the client was gone before it.
    status: int = 0
    #: finish_reason of the answer, or why there was none.
    reason: str = ""
    turns: list[TurnStats] = field(default_factory=list)
    #: The engine's own ids of this exchange.
    engine_ids: list[str] = field(default_factory=list)

    @staticmethod
    def begin(scope: Scope) -> Exchange:
        """With the client's own request id where it is a sane one. Engine ids are always ours."""
        nonce = new_nonce()
        own_id = request_id(header(scope, b"x-request-id"), nonce)
        exchange = Exchange(own_id, scope["method"], scope["path"], nonce)
        exchange.headers.append((b"x-request-id", own_id.encode()))
        scope.setdefault("state", {})["exchange"] = exchange
        return exchange

    @staticmethod
    def of(scope: Scope) -> Exchange:
        exchange: Exchange = scope["state"]["exchange"]
        return exchange
