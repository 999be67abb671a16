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
    #: May manage what all callers share.
    is_admin: bool = False

    def cache_salt(self, client_salt: str | None) -> str:
        """The gateway's salt isolates keys; a salt of the client only divides its own space further."""
        if not self.key_hash and not client_salt:
            return ""
        return _digest("salt", self.key_hash, client_salt or "")

    def session(self, scope: Scope, fields: SamplingFields) -> str:
        """The key of the session that a request names, "" when it names none."""
        return self.session_key(session_name(scope, fields))

    def session_key(self, name: str) -> str:
        """Hashed with the API key: equal names of two callers are two sessions."""
        return _digest("session", self.key_hash, name) if name else ""


#: A caller of an open server.
ANYBODY = Caller()


def session_name(scope: Scope, fields: SamplingFields) -> str:
    """From a header, else `prompt_cache_key`, `metadata.session_id` or `user`; "" when there is none."""
    for header_name in SESSION_HEADERS:
        if value := header(scope, header_name).decode("latin-1").strip():
            return value[:MAX_SESSION_CHARS]
    for candidate in (fields.prompt_cache_key, session_in(fields.metadata), fields.user):
        if candidate:
            return candidate[:MAX_SESSION_CHARS]
    return ""


class KeyRing:
    """The accepted API keys, those of administrators among them. Without API keys the server is open: any key, or none,
    is fine, and an administrator's key is known by itself."""

    def __init__(self, api_keys: tuple[str, ...], admin_keys: tuple[str, ...] = ()) -> None:
        self._admins = _digests(admin_keys)
        self._digests = (*_digests(api_keys), *self._admins) if api_keys else ()

    def identify(self, scope: Scope) -> Caller:
        """The caller behind the request's key.

        Raises: Unauthorized. Every stored key is compared, in constant time.
        """
        if not self._digests and not self._admins:
            return ANYBODY
        presented = _presented_key(scope)
        digest = hashlib.sha256(presented).digest()
        is_admin = any([hmac.compare_digest(digest, known) for known in self._admins])
        if not self._digests:
            return Caller(is_admin=is_admin)
        if not presented:
            raise Unauthorized("No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("Incorrect API key.")
        return Caller(_hash_of(digest), is_admin)


def key_hash(key: bytes) -> str:
    """The `Caller.key_hash` of whoever presents this key."""
    return _hash_of(hashlib.sha256(key).digest())


def _digests(keys: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


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
