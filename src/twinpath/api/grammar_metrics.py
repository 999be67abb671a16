"""What `/metrics` shows of constrained answers, read from the latest heartbeat."""

from __future__ import annotations

from twinpath.api.ports import Replica
from twinpath.ipc.messages import GrammarGauges
from twinpath.telemetry.metrics import ServerMetrics


def watch_grammars(metrics: ServerMetrics, replica: Replica) -> None:
    """Register them."""

    def now() -> GrammarGauges:
        return replica.gauges.grammars

    metrics.watch_total("twinpath:grammars_compiled", "Grammars compiled.", lambda: now().num_compiled)
    metrics.watch_total("twinpath:grammar_hits", "Requests whose grammar was known.", lambda: now().num_hits)
    metrics.watch_total("twinpath:grammars_failed", "Grammars that could not be compiled.", lambda: now().num_failed)
    metrics.watch_total(
        "twinpath:grammar_closed_out",
        "Answers that were completed because their tokens ran out.",
        lambda: now().num_closed_out,
    )
