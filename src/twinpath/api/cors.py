"""Which web pages may read the answers."""

from __future__ import annotations

from twinpath.api.envelope import Headers

_EXPOSED = (
    b"access-control-expose-headers",
    b"x-request-id, retry-after, x-twinpath-lane, x-twinpath-predicted-ttft-ms",
)


class OriginRule:
    """`allowed`: origins, or `*` for any. None: no page may."""

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        self._any = "*" in allowed
        self._allowed = frozenset(origin.encode() for origin in allowed)

    def headers(self, origin: bytes) -> Headers:
        """Of an answer to a page of `origin` (b"": none said), whatever the answer is."""
        if self._any:
            return [(b"access-control-allow-origin", b"*"), _EXPOSED]
        vary = (b"vary", b"origin")
        return [(b"access-control-allow-origin", origin), _EXPOSED, vary] if origin in self._allowed else [vary]
