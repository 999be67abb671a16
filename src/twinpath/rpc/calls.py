"""One gRPC call as the HTTP door knows an exchange: ids, caller, metadata as headers, and its end as a status."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import grpc

from twinpath.api.envelope import internal_error
from twinpath.api.exchange import Exchange
from twinpath.api.generation import shutting_down
from twinpath.api.identity import KeyRing
from twinpath.errors import RequestError
from twinpath.rpc.statuses import details_of, status_of, trailing_metadata

#: What HTTP would have answered, for the log and the metrics.
_OK, _CLIENT_GONE = 200, 499


class Context(Protocol):
    """What is used of `grpc.aio.ServicerContext`, which has no types of its own."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None: ...

    async def write(self, message: Any) -> None: ...

    async def abort(self, code: Any, details: str = "", trailing_metadata: Sequence[tuple[str, str]] = ()) -> None: ...


@dataclass(eq=False, slots=True)
class Call:
    """`scope` is what the door's functions take: method, path and headers."""

    scope: dict[str, Any]
    exchange: Exchange
    task: asyncio.Task[Any]
    #: Abort ended it.
    aborted: bool = False


class Calls:
    """The running calls, by caller and request id."""

    def __init__(self, keys: KeyRing, report: Callable[[Exchange], None], log: logging.Logger) -> None:
        self._keys = keys
        self._report = report
        self._log = log
        self._running: defaultdict[tuple[str, str], set[Call]] = defaultdict(set)
        self._draining = False
        self._num_running = 0
        self._empty = asyncio.Event()

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls from now on, and wait for the running ones for so long."""
        self._draining = True
        if self._num_running:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()

    @asynccontextmanager
    async def call(self, context: Context, path: str) -> AsyncIterator[Call]:
        """The body of a call: what it raises becomes the status, and what it did is reported."""
        call = _begin(context, path)
        exchange = call.exchange
        try:
            if self._draining:
                raise shutting_down()
            exchange.caller = self._keys.identify(call.scope)
            with self._counted(), self.know_as(call, exchange.request_id):
                await context.send_initial_metadata((("x-request-id", exchange.request_id),))
                yield call
            exchange.status = _OK
        except RequestError as error:
            exchange.status, exchange.reason = error.status, f"error:{error.code or error.type}"
            await context.abort(status_of(error), details_of(error), trailing_metadata(error))
        except asyncio.CancelledError:
            exchange.status = _CLIENT_GONE
            if not call.aborted:
                exchange.reason = "disconnect"
                raise
            exchange.reason = "aborted"
            call.task.uncancel()
            await context.abort(grpc.StatusCode.CANCELLED, "Ended by Abort.")
        except Exception as error:
            self._log.exception("%s failed: %s", exchange.request_id, type(error).__name__)
            exchange.status, exchange.reason = 500, "error:internal_error"
            await context.abort(grpc.StatusCode.INTERNAL, details_of(internal_error()))
        finally:
            self._report(exchange)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            if self._draining and not self._num_running:
                self._empty.set()

    def know_as(self, call: Call, request_id: str) -> _Registration:
        """Let Abort find the call by an id of the client's own; `with` ends that."""
        return _Registration(self._running, call, request_id)

    def abort(self, context: Context, request_id: str) -> int:
        """End the caller's calls with this id; how many there were.

        Raises: Unauthorized.
        """
        scope = _begin(context, "/Abort").scope
        calls = self._running.get((self._keys.identify(scope).key_hash, request_id), ())
        ended = [call for call in calls if not call.aborted]
        for call in ended:
            call.aborted = True
            call.task.cancel()
        return len(ended)


class _Registration:
    """A call under one id, for the time of a `with`."""

    def __init__(self, running: defaultdict[tuple[str, str], set[Call]], call: Call, request_id: str) -> None:
        self._running = running
        self._call = call
        self._key = (call.exchange.caller.key_hash, request_id)

    def __enter__(self) -> None:
        if self._key[1]:
            self._running[self._key].add(self._call)

    def __exit__(self, *_: object) -> None:
        calls = self._running.get(self._key)
        if calls is not None:
            calls.discard(self._call)
            if not calls:
                del self._running[self._key]


def _begin(context: Context, path: str) -> Call:
    metadata = context.invocation_metadata() or ()
    headers = [(key.lower().encode(), value if isinstance(value, bytes) else value.encode()) for key, value in metadata]
    scope: dict[str, Any] = {"type": "http", "method": "GRPC", "path": path, "headers": headers}
    exchange = Exchange.begin(scope)
    exchange.body_at = monotonic()
    task = asyncio.current_task()
    assert task is not None
    return Call(scope, exchange, task)
