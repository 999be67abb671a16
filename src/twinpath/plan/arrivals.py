"""Who comes when with what: the arrivals a simulation is fed, built from a trace by scaling, windows and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from twinpath.errors import UserError
from twinpath.plan.tokens import FILLER_BASE, Blocks, TokenStream, num_blocks, num_shared_blocks


@dataclass(frozen=True, slots=True)
class SloClass:
    """A service class. `max_new_tokens`: prompts with at most so many tokens not seen before belong to it.

    Several classes with the same bound share its requests (of a trace of sessions: its sessions) by `share`, at random.
    """

    name: str
    ttft_ms: float
    tpot_ms: float
    max_new_tokens: int = 1 << 62
    weight: float = 1.0
    #: Lower goes first; only the policy `priority` looks at it.
    priority: int = 0
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One row of a trace. `after`: the turn it follows, -1 for none; then `at_s` counts from that one's end."""

    at_s: float
    num_prompt: int
    num_output: int
    blocks: Blocks = ()
    session: str = ""
    after: int = -1


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read. `sessions`: turns follow each other, and roots (after == -1) have no time of their own."""

    name: str
    turns: list[Turn]
    block_tokens: int = 1
    sessions: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How a trace becomes a load.

    load: arrivals come so many times as fast as recorded; for sessions, so many times the rate of one per 60 s.
    token_scale: prompt and output lengths are multiplied by it (blocks too, so that shares stay what they are).
    window_tokens: longer requests lose the end of their prompt; how many is noted.
    """

    seed: int = 0
    num_requests: int = 2000
    load: float = 1.0
    token_scale: float = 1.0
    window_tokens: int = 131072
    max_think_s: float = 300.0


@dataclass(slots=True)
class Arrival:
    """A request to come. `at_s` as in `Turn`; the answer is what `stream` holds after the prompt."""

    index: int
    at_s: float
    after: int
    stream: TokenStream
    num_prompt: int
    num_output: int
    slo: SloClass
    session: str
    salt: str
    #: Prompt tokens that no earlier request of the load had in front: what an unlimited cache would leave to compute.
    num_new: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals; those with `after == -1` in order of time, followers anywhere after their predecessor."""

    name: str
    arrivals: list[Arrival]
    classes: tuple[SloClass, ...]
    notes: tuple[str, ...] = ()
    followers: dict[int, list[int]] = field(default_factory=dict)


#: Sessions of load 1: one per minute begins.
_SESSION_INTERVAL_S = 60.0


def build_workload(trace: Trace, settings: TraceSettings, classes: Sequence[SloClass]) -> Workload:
    """Arrivals of one seed. Raises: UserError on a trace or a load that has nothing in it."""
    if not trace.turns:
        raise UserError(f"{trace.name}: the trace has no requests")
    if settings.num_requests < 1 or settings.load <= 0 or settings.token_scale <= 0:
        raise UserError("number of requests, load and token scale must be above zero")
    builder = _Builder(trace, settings, tuple(sorted(classes, key=lambda slo: slo.max_new_tokens)))
    if trace.sessions:
        builder.add_sessions()
    else:
        builder.add_window()
    notes = list(trace.notes)
    if builder.num_cut:
        notes.append(f"{builder.num_cut} prompts cut to the window of {settings.window_tokens} tokens")
    followers: dict[int, list[int]] = {}
    for arrival in builder.arrivals:
        if arrival.after >= 0:
            followers.setdefault(arrival.after, []).append(arrival.index)
    return Workload(trace.name, builder.arrivals, tuple(classes), tuple(notes), followers)


class _Builder:
    def __init__(self, trace: Trace, settings: TraceSettings, classes: tuple[SloClass, ...]) -> None:
        self.arrivals: list[Arrival] = []
        self.num_cut = 0
        self._trace = trace
        self._settings = settings
        self._classes = classes
        self._random = Random(f"{trace.name} {settings.seed}")
        #: Of its own, so that classes do not change who comes when.
        self._class_random = Random(f"classes {trace.name} {settings.seed}")
        self._draw = 0.0

    def add_window(self) -> None:
        """A stretch of the trace that begins at a random row; past its end the trace starts again, sharing nothing."""
        turns, settings = self._trace.turns, self._settings
        index = self._random.randrange(len(turns))
        span_s = turns[-1].at_s - turns[0].at_s
        # From the last row to the first of the next pass: one mean gap.
        gap_s = span_s / max(len(turns) - 1, 1)
        origin_s, offset_s, num_pass = turns[index].at_s, 0.0, 0
        seen: set[int] = set()
        for _ in range(settings.num_requests):
            turn = turns[index]
            num_known = _mark_seen(turn.blocks, seen) * self._trace.block_tokens
            at_s = (turn.at_s - origin_s + offset_s) / settings.load
            self._append(turn, at_s, -1, turn.blocks, num_known, f"pass {num_pass}" if num_pass else "")
            index += 1
            if index == len(turns):
                index, num_pass, offset_s = 0, num_pass + 1, offset_s + span_s + gap_s
                seen = set()

    def add_sessions(self) -> None:
        """Whole sessions in random order, beginning as a Poisson process, until there are enough turns."""
        settings = self._settings
        groups = _group_sessions(self._trace.turns)
        begin_s, num_pass = 0.0, 0
        while len(self.arrivals) < settings.num_requests:
            self._random.shuffle(groups)
            for group in groups:
                if len(self.arrivals) >= settings.num_requests:
                    return
                self._add_session(group, begin_s, f"pass {num_pass}" if num_pass else "")
                begin_s += self._random.expovariate(settings.load / _SESSION_INTERVAL_S)
            num_pass += 1

    def _add_session(self, group: list[int], begin_s: float, salt: str) -> None:
        turns = self._trace.turns
        new_index: dict[int, int] = {}
        next_turn = {turns[i].after: i for i in group if turns[i].after >= 0 and _same_session(turns, i)}
        for position in group:
            turn = turns[position]
            known = 0
            blocks = turn.blocks
            if turn.after >= 0 and _same_session(turns, position):
                known = num_shared_blocks(turn.blocks, turns[turn.after].blocks) * self._trace.block_tokens
            follower = next_turn.get(position)
            if follower is not None:
                following = turns[follower].blocks
                if num_shared_blocks(blocks, following) == num_blocks(blocks):
                    blocks = following  # The next prompt goes on with this answer: what is said now is read then.
            after = new_index.get(turn.after, -1)
            at_s = begin_s if after < 0 else min(turn.at_s, self._settings.max_think_s)
            new_index[position] = len(self.arrivals)
            self._append(turn, at_s, after, blocks, known, salt)

    def _append(self, turn: Turn, at_s: float, after: int, blocks: Blocks, num_known: int, salt: str) -> None:
        settings, index = self._settings, len(self.arrivals)
        num_output = max(1, round(turn.num_output * settings.token_scale))
        num_prompt = max(1, round(turn.num_prompt * settings.token_scale))
        if num_prompt + num_output > settings.window_tokens:
            num_output = min(num_output, settings.window_tokens // 2)
            num_prompt = settings.window_tokens - num_output
            self.num_cut += 1
        num_new = max(1, num_prompt - int(num_known * settings.token_scale))
        stream = TokenStream(blocks, self._trace.block_tokens * settings.token_scale, FILLER_BASE + index)
        if after < 0:
            self._draw = self._class_random.random()
        slo = _choose_class(self._classes, num_new, self._draw)
        session = f"{salt}{turn.session}" if turn.session else ""
        self.arrivals.append(Arrival(index, at_s, after, stream, num_prompt, num_output, slo, session, salt, num_new))


def _choose_class(classes: tuple[SloClass, ...], num_new: int, draw: float) -> SloClass:
    """`classes` in order of their bounds; `draw` in [0, 1) chooses among those that share one."""
    bound = next((slo.max_new_tokens for slo in classes if num_new <= slo.max_new_tokens), classes[-1].max_new_tokens)
    sharing = [slo for slo in classes if slo.max_new_tokens == bound]
    left = draw * sum(slo.share for slo in sharing)
    for slo in sharing:
        left -= slo.share
        if left < 0:
            return slo
    return sharing[-1]


def _same_session(turns: list[Turn], index: int) -> bool:
    return turns[index].session == turns[turns[index].after].session


def _group_sessions(turns: list[Turn]) -> list[list[int]]:
    """Each root with all that follows it, directly or not, in order of the trace."""
    groups: dict[int, list[int]] = {}
    root: dict[int, int] = {}
    for index, turn in enumerate(turns):
        root[index] = root[turn.after] if turn.after >= 0 else index
        groups.setdefault(root[index], []).append(index)
    return list(groups.values())


def _mark_seen(blocks: Blocks, seen: set[int]) -> int:
    """Leading blocks that were seen before; all are seen now."""
    known, leading = 0, True
    for first, last in blocks:
        for block in range(first, last + 1):
            leading = leading and block in seen
            known += leading
            seen.add(block)
    return known
