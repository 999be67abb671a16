"""What a request was promised, by its headers, its key or its class; and how the promise was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import Scope

from twinpath.api.envelope import Headers
from twinpath.api.identity import Caller, key_hash
from twinpath.config import SloClass, SloConfig
from twinpath.errors import InvalidRequest

if TYPE_CHECKING:
    from twinpath.api.turn import TurnStats

#: The last two are also the names that load generators send.
CLASS_HEADER, TTFT_HEADER, TPOT_HEADER = b"x-slo-class", b"x-slo-ttft-ms", b"x-slo-tpot-ms"
LANE_HEADER, PREDICTED_HEADER = b"x-twinpath-lane", b"x-twinpath-predicted-ttft-ms"
DEFAULT_CLASS = "default"
_LONGEST_MS = 86_400_000.0

#: Label of a request without a class.
NO_CLASS = "none"


@dataclass(frozen=True, slots=True)
class Service:
    """What one request is promised. `class_name` is one of the configured names, or ""."""

    class_name: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    weight: float = 1.0

    @property
    def has_target(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None


NO_SERVICE = Service()


class ServiceDesk:
    """Finds a request's service: its headers, else its key's class, else the class `default`, else no promise."""

    def __init__(self, config: SloConfig) -> None:
        self._services = {slo.name: _service(slo) for slo in config.classes}
        self._default = self._services.get(DEFAULT_CLASS, NO_SERVICE)
        self._of_caller: Mapping[str, Service] = {
            key_hash(key.encode()): self._services[name] for key, name in config.class_of_key
        }

    def service(self, scope: Scope, caller: Caller) -> Service:
        """Raises: InvalidRequest for a class that does not exist or a target that is no positive number."""
        own = self._of_caller.get(caller.key_hash, self._default) if self._of_caller else self._default
        for name, _ in scope["headers"]:
            if name.startswith(b"x-slo-"):
                return self._asked(own, dict(scope["headers"]))
        return own

    def _asked(self, own: Service, asked: Mapping[bytes, bytes]) -> Service:
        """`own` as the headers change it."""
        if CLASS_HEADER in asked:
            own = self._named(asked[CLASS_HEADER].decode("latin-1").strip())
        return Service(
            own.class_name,
            _target(asked, TTFT_HEADER, own.ttft_ms),
            _target(asked, TPOT_HEADER, own.tpot_ms),
            own.weight,
        )

    def _named(self, name: str) -> Service:
        service = self._services.get(name)
        if service is None:
            known = ", ".join(self._services) or "none"
            raise InvalidRequest(f"There is no such service class; this server has: {known}.", param="x-slo-class")
        return service


@dataclass(frozen=True, slots=True)
class Miss:
    """The first promise that was broken, and by what.

    stage: ttft or tpot. cause: queue (in time without the wait), prefill, decode, client (left, or read too slowly),
    shed (refused), error.
    """

    stage: str
    cause: str


#: Why exchanges end without being our fault.
_CLIENT_REASONS = frozenset({"disconnect", "slow reader"})
#: Codes and types of refusals for want of time or room.
_SHED_REASONS = frozenset({"error:deadline_unreachable", "error:overloaded_error"})


def judge(stats: TurnStats, reason: str) -> Miss | None:
    """What a generation with targets missed, when it is over; None: nothing. `reason`: why its exchange ended."""
    service, failed = stats.service, reason.startswith("error")
    if stats.first_token_at is None:
        if reason in ("stop", "length"):
            return None  # A prompt that was only scored.
        if reason in _SHED_REASONS:
            return Miss("ttft", "shed")
        return Miss("ttft", "client" if reason in _CLIENT_REASONS else "error")
    ttft_ms = (stats.first_token_at - stats.arrived_at) * 1e3
    if service.ttft_ms is not None and ttft_ms > service.ttft_ms:
        return Miss("ttft", "queue" if ttft_ms - stats.waited_ms <= service.ttft_ms else "prefill")
    gaps = stats.token_gaps
    if service.tpot_ms is not None and gaps.num_values and gaps.total * 1e3 > service.tpot_ms * gaps.num_values:
        own_s = gaps.total - stats.stalled_s
        return Miss("tpot", "client" if own_s * 1e3 <= service.tpot_ms * gaps.num_values else "decode")
    return Miss("tpot", "error") if failed else None


def promise_headers(stats: TurnStats) -> Headers:
    """Lane and prediction, as fixed at arrival; nothing when nothing was promised."""
    promise = stats.promise
    if promise is None:
        return []
    headers = [(LANE_HEADER, promise.lane.encode())]
    if promise.predicted_ttft_ms is not None:
        headers.append((PREDICTED_HEADER, b"%.1f" % promise.predicted_ttft_ms))
    return headers


def _service(slo: SloClass) -> Service:
    return Service(slo.name, slo.ttft_ms, slo.tpot_ms, slo.weight)


def _target(asked: Mapping[bytes, bytes], name: bytes, own: float | None) -> float | None:
    value = asked.get(name)
    if value is None:
        return own
    try:
        target_ms = float(value)
    except ValueError:
        target_ms = 0.0
    if not 0.0 < target_ms <= _LONGEST_MS:
        header = name.decode()
        raise InvalidRequest(f"'{header}' must be milliseconds above 0, at most {_LONGEST_MS:g}.", param=header)
    return target_ms
