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
    #: Its reader has a whole answer, which belongs to its session; else what it said is forgotten.
    complete: bool = False


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Gateway -> engine: finish nothing more, free everything, exit 0."""


class ListSessions(msgspec.Struct, frozen=True, tag="list_sessions"):
    """Gateway -> engine: which sessions this tenant has; answered by `Answer`, as every message with a `call_id`."""

    call_id: int
    tenant: str
    #: Only this one.
    session: str | None = None


class EndSession(msgspec.Struct, frozen=True, tag="end_session"):
    """Gateway -> engine: forget a session and free its pages."""

    call_id: int
    session: str


class PinnedPrompt(msgspec.Struct, frozen=True):
    """The beginning of prompts that a template keeps the KV of."""

    name: str
    prompt_ids: list[int]
    cache_salt: str = ""
    #: For requests of every salt.
    shared: bool = False


class PinTemplate(msgspec.Struct, frozen=True, tag="pin"):
    """Gateway -> engine: compute the KV of this beginning and keep it; answered when that is done."""

    call_id: int
    prompt: PinnedPrompt


class UnpinTemplate(msgspec.Struct, frozen=True, tag="unpin"):
    """Gateway -> engine: let go of a template."""

    call_id: int
    name: str


class ListTemplates(msgspec.Struct, frozen=True, tag="list_templates"):
    """Gateway -> engine: which templates there are."""

    call_id: int


Call = ListSessions | EndSession | PinTemplate | UnpinTemplate | ListTemplates


class SessionCard(msgspec.Struct, frozen=True, array_like=True):
    """One session. Times are seconds before now, and until then."""

    name: str
    num_turns: int
    #: Turns that wait or run.
    num_active: int
    num_pages: int
    #: Of its longest context.
    num_tokens: int
    age_s: float
    idle_s: float
    expires_in_s: float


class TemplateCard(msgspec.Struct, frozen=True, array_like=True):
    """One pinned template."""

    name: str
    num_tokens: int
    #: Whole pages only: tokens beyond them are computed with each request.
    num_pinned_tokens: int
    num_pages: int
    shared: bool
    #: False while its KV is computed.
    ready: bool
    num_hits: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Engine -> gateway: the answer to a call."""

    call_id: int
    #: Why it was refused.
    refusal: str | None = None
    #: Those that were asked for, pinned, ended or let go.
    sessions: list[SessionCard] = []
    templates: list[TemplateCard] = []


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
    #: Expected number of those waiting that miss their target for the first token, by that fit.
    expected_misses: float = 0.0


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


class MemoryGauges(msgspec.Struct, frozen=True, array_like=True):
    """Every KV page once, by what it is for; and what became of claims on them."""

    pinned: int = 0
    running: int = 0
    session: int = 0
    prefix: int = 0
    free: int = 0
    num_sessions: int = 0
    num_sessions_expired: int = 0
    num_templates: int = 0
    #: FAST requests that were preempted because nothing else was left.
    num_fast_preemptions: int = 0
    #: Slabs that each lane holds, and moves of slabs between lanes.
    slabs_fast: int = 0
    slabs_flex: int = 0
    num_slab_moves: int = 0


class GrammarGauges(msgspec.Struct, frozen=True, array_like=True):
    """Constrained answers since the engine's start."""

    num_compiled: int = 0
    #: Requests whose grammar was known.
    num_hits: int = 0
    num_failed: int = 0
    #: Answers that were completed because their tokens ran out.
    num_closed_out: int = 0


class StallGauges(msgspec.Struct, frozen=True, array_like=True):
    """What held up the engine's loop, when it is traced."""

    num_stalls: int = 0
    worst_ms: float = 0.0


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
    stalls: StallGauges = StallGauges()
    memory: MemoryGauges = MemoryGauges()
    grammars: GrammarGauges = GrammarGauges()


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


ToEngine = Submit | Cancel | Drain | Call
ToGateway = Ready | LoadProgress | Fatal | Heartbeat | Events | Answer
