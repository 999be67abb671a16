"""What `/metrics` shows of KV pages, sessions and templates, read from the latest heartbeat."""

from __future__ import annotations

from twinpath.api.ports import Replica
from twinpath.ipc.messages import MemoryGauges
from twinpath.telemetry.metrics import ServerMetrics


def watch_memory(metrics: ServerMetrics, replica: Replica) -> None:
    """Register them."""

    def now() -> MemoryGauges:
        return replica.gauges.memory

    def by_kind() -> dict[str, float]:
        memory = now()
        return {kind: getattr(memory, kind) for kind in ("pinned", "running", "session", "prefix", "free")}

    def by_lane() -> dict[str, float]:
        return {"fast": now().slabs_fast, "flex": now().slabs_flex}

    metrics.watch_by(
        "twinpath:kv_pages",
        "KV pages: pinned by templates, referenced by running requests, kept for sessions, cold prefixes, free.",
        "kind",
        by_kind,
    )
    metrics.watch_by("twinpath:kv_slabs", "Sixteenths of the KV pool that a lane has drawn.", "lane", by_lane)
    metrics.watch_total("twinpath:kv_slab_moves", "Slabs lent or given back.", lambda: now().num_slab_moves)
    metrics.watch("twinpath:sessions", "Sessions that are known.", lambda: now().num_sessions)
    metrics.watch_total("twinpath:sessions_expired", "Sessions that ended by time.", lambda: now().num_sessions_expired)
    metrics.watch("twinpath:templates", "Pinned templates.", lambda: now().num_templates)
    metrics.watch_total(
        "twinpath:fast_preemptions",
        "FAST requests preempted because nothing else was left to give way.",
        lambda: now().num_fast_preemptions,
    )
