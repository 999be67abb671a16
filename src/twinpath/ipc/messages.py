"""What the gateway process and the engine process say to each other. Plain data; the channel does not look inside."""

from __future__ import annotations

import msgspec

from twinpath.types import Event, Request


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Gateway -> engine: run this request."""

    request: Request


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Gateway -> engine: nobody waits for this request any more. Unknown or finished ids are ignored."""

    request_id: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Gateway -> engine: finish nothing more, free everything, exit 0."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Engine -> gateway, once: weights loaded and one real forward done."""

    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    description: str
    #: Requests that run at once; more wait.
    max_num_seqs: int = 1
    #: Named start-up facts for the table the user sees (threads, kernel set, KV pool, load seconds, ...).
    facts: dict[str, str] = {}


class LoadProgress(msgspec.Struct, frozen=True, tag="load"):
    """Engine -> gateway while loading: shown as a progress bar, and proof of life for the watchdog."""

    done: int
    total: int
    what: str = ""


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """Engine -> gateway: the engine cannot start or go on, and why, in one line. `user_error` means exit code 2."""

    message: str
    user_error: bool = False


class LaneGauges(msgspec.Struct, frozen=True, array_like=True):
    """One lane: its requests, and the Weibull distribution fitted to their waits for the first row (0: none yet)."""

    running: int = 0
    waiting: int = 0
    wait_shape: float = 0.0
    wait_scale_s: float = 0.0


class DeadlineGauges(msgspec.Struct, frozen=True, array_like=True):
    """What the scheduler does about promises."""

    fast: LaneGauges = LaneGauges()
    flex: LaneGauges = LaneGauges()
    #: Of one decode step with the streams that run now, and what may lie between two of them.
    decode_step_ms: float = 0.0
    itl_budget_ms: float = 0.0
    #: Steps far from their prediction, of all measured.
    num_outliers: int = 0
    num_measured: int = 0
    num_shed: int = 0


class Gauges(msgspec.Struct, frozen=True, array_like=True):
    """Engine state for metrics and for leak checks."""

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    #: Pages referenced by running requests.
    pages_used: int = 0
    #: Pages that hold reusable prefixes and nobody references.
    pages_cached: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    deadlines: DeadlineGauges = DeadlineGauges()


class Heartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """Engine -> gateway about once a second from its own thread.

    `progress` grows while work is done (layers, loop turns); busy with no growth is a hang, silence is a dead or
    stopped process.
    """

    busy: bool
    progress: int
    gauges: Gauges


class Events(msgspec.Struct, frozen=True, tag="events"):
    """Engine -> gateway: all that one step produced, in one message."""

    events: list[Event]


ToEngine = Submit | Cancel | Drain
ToGateway = Ready | LoadProgress | Fatal | Heartbeat | Events
