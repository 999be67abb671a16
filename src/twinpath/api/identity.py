"""Who asks: API keys, and the cache namespace and session key made from them. Keys leave here only as hashes."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from starlette.types import Scope

from twinpath.api.headers import header
from twinpath.api.raw_fields import session_in
from twinpath.api.schemas import SamplingFields
from twinpath.errors import Unauthorized

#: First match wins; ids that change with every request must not be listed here.
SESSION_HEADERS = (b"x-session-id", b"x-session-affinity", b"x-litellm-session-id")
MAX_SESSION_CHARS = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller: `key_hash` is "" on an open server."""

    key_hash: str = ""

    def cache_salt(self, client_salt: str | None) -> str:
        """The gateway's salt isolates keys; a salt of the client only divides its own space further."""
        if not self.key_hash and not client_salt:
            return ""
        return _digest("salt", self.key_hash, client_salt or "")

    def session(self, scope: Scope, fields: SamplingFields) -> str:
        """From a header, else `prompt_cache_key`, `metadata.session_id` or `user`; hashed with the API key."""
        for name in SESSION_HEADERS:
            if value := header(scope, name).decode("latin-1").strip():
                return _digest("session", self.key_hash, value[:MAX_SESSION_CHARS])
        for candidate in (fields.prompt_cache_key, session_in(fields.metadata), fields.user):
            if candidate:
                return _digest("session", self.key_hash, candidate[:MAX_SESSION_CHARS])
        return ""


class KeyRing:
    """The accepted API keys. An empty ring is an open server: any key, or none, is fine."""

    def __init__(self, api_keys: tuple[str, ...]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in api_keys)

    def identify(self, scope: Scope) -> Caller:
        """The caller behind the request's key.

        Raises: Unauthorized. Every stored key is compared, in constant time.
        """
        if not self._digests:
            return Caller()
        presented = _presented_key(scope)
        if not presented:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        digest = hashlib.sha256(presented).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("Incorrect API key.")
        return Caller(_hash_of(digest))


def key_hash(key: bytes) -> str:
    """The `Caller.key_hash` of whoever presents this key."""
    return _hash_of(hashlib.sha256(key).digest())


def _hash_of(digest: bytes) -> str:
    return hashlib.sha256(b"caller:" + digest).hexdigest()


def _presented_key(scope: Scope) -> bytes:
    scheme, _, token = header(scope, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return header(scope, b"x-api-key").strip()


def _digest(*parts: str) -> str:
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]
