"""Routes that clients know from elsewhere and that no model here has: a refusal that says so, instead of "no such
path"."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from twinpath.errors import RequestError

#: Path -> what it would do.
REFUSED = {
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "reranking",
    "/v1/moderations": "moderation",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/speech": "speech",
    "/v1/images/generations": "images",
}


class Refused:
    """404 with the code `unsupported_endpoint`, whatever the method and the body."""

    def __init__(self, what: str) -> None:
        self._what = what

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise RequestError(
            f"The model served here generates text; it does not do {self._what}. Use another server for that.",
            status=404,
            code="unsupported_endpoint",
        )
