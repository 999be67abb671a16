"""Who waits, who runs, and what they hold: the bookkeeping of requests that must hold whatever the policy says."""

from __future__ import annotations

from bisect import insort

from twinpath.contracts import Clock
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.memory import Memory
from twinpath.scheduler.policy import Policy, over_age
from twinpath.scheduler.queue import WaitingQueue
from twinpath.scheduler.sequence import Lane, Phase, Sequence


class Roster:
    """Moves sequences between waiting, running and done, with their slots and pages.

    Invariant: a sequence keeps slot and pages until no outstanding plan touches it (`settle`). `running` is ordered by
        arrival, and `sequences` holds exactly those that wait or run.
    """

    def __init__(self, policy: Policy, memory: Memory, clock: Clock, max_running: int) -> None:
        self.policy = policy
        self.memory = memory
        self.max_running = max_running
        self.sequences: dict[str, Sequence] = {}
        self.waiting = {lane: WaitingQueue(policy) for lane in Lane}
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._clock = clock
        #: Ended or preempted, and still in outstanding plans: their pages are coming.
        self._leaving: set[int] = set()
        #: A FAST request for which a FLEX one gave way.
        self._owed: Sequence | None = None

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    def add(self, sequence: Sequence) -> None:
        self.sequences[sequence.request_id] = sequence
        self.waiting[sequence.lane].add(sequence, self._clock())

    def all_waiting(self) -> list[Sequence]:
        """Of both lanes, FAST first, each in the order in which they are served."""
        return [sequence for queue in self.waiting.values() for sequence in queue.ordered(self._clock())]

    def note_wait(self, sequence: Sequence, wait_s: float, *, served: bool) -> None:
        """A wait for the first row is over: `served`, or censored (cancelled, refused)."""
        self.waiting[sequence.lane].waits.add(max(wait_s, 0.0), served)

    def rank(self, sequence: Sequence, now_s: float) -> tuple[bool, float, int]:
        """Sorts prefills that run: FAST ones and those over age first, then by policy and arrival."""
        is_behind = sequence.lane is Lane.FLEX and not over_age(sequence, now_s)
        return is_behind, self.policy.key(sequence, now_s), sequence.order

    def admit(self, lane: Lane, *, is_late: bool = False) -> Sequence | None:
        """Start the first waiting sequence of a lane when a slot and pages for all its known tokens are there."""
        queue = self.waiting[lane]
        if not queue or len(self.running) >= self.max_running:
            return None
        if self._leaving and any(other.phase is Phase.PREEMPTING for other in self.running):
            return None  # It comes back to the queue, perhaps before everyone who waits.
        sequence = queue.first(self._clock())
        while not self.memory.admit(sequence, self.running, is_late=is_late):
            debtor = self.memory.debtor(sequence, self.running) if lane is Lane.FAST else None
            if debtor is None:
                return None
            self._owed = sequence
            self._preempt(debtor)
            if debtor.phase is Phase.PREEMPTING:
                return None
        queue.remove(sequence)
        sequence.phase = Phase.RUNNING
        if self.running and self.running[-1].order > sequence.order:
            insort(self.running, sequence, key=lambda other: other.order)
        else:
            self.running.append(sequence)
        return sequence

    def admit_lanes(self, now_s: float) -> None:
        """All of FAST that fits, and one FLEX prefill at a time. A FLEX request that is over age comes first."""
        flex = self.waiting[Lane.FLEX]
        is_late = bool(flex) and over_age(flex.first(now_s), now_s)
        is_owed = self._owed is not None and self._owed in self.waiting[Lane.FAST]
        if (
            flex
            and (is_late or not is_owed)  # Else it would take back what it just gave.
            and not any(s.lane is Lane.FLEX and not s.started for s in self.running)
            and self.admit(Lane.FLEX, is_late=is_late) is None
            and is_late
        ):
            return  # What FAST requests give back is kept for it.
        while self.admit(Lane.FAST) is not None:
            pass

    def extend_pages(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence the pages of its first `num_tokens` positions; the policy's victim gives way."""
        while not self.memory.extend(sequence, num_tokens, self.running):
            if self._leaving:
                return False  # Their pages come back once the plans that touch them are committed.
            victim = self.memory.victim(self.running)
            self._preempt(victim)
            self.memory.num_fast_preemptions += victim.lane is Lane.FAST
            if victim is sequence or victim.in_flight:
                return False  # It may even have a row in this very step.
        return True

    def extend_ahead(self, rows: list[Row], max_repeat: int) -> int:
        """How often a step of these rows can run on end while nobody can come in or has to give way; takes the pages.

        1 unless all that run have told their first token, and either nobody waits or no slot is free.
        """
        if len(rows) != len(self.running) or (len(rows) < self.max_running and self.num_waiting):
            return 1
        repeat = max_repeat
        for row in rows:
            sequence = row.sequence
            if row.length != 1 or not row.sample or not sequence.started or sequence.constraint is not None:
                return 1
            if (num_left := sequence.max_outputs - sequence.num_known + sequence.num_prompt) < repeat:
                repeat = num_left
        return repeat if self.memory.extend_ahead(rows, repeat) else 1

    def note_complete(self, request_id: str) -> None:
        """Its reader has all it wanted: what it said belongs to the context."""
        if request_id in self.sequences:
            self.sequences[request_id].is_complete = True

    def end(self, sequence: Sequence) -> None:
        """The request is over for its caller; slot and pages follow once no outstanding plan touches them."""
        del self.sequences[sequence.request_id]
        if sequence.phase is Phase.WAITING:
            self.waiting[sequence.lane].remove(sequence)
            if sequence.waited_s is None:
                self.note_wait(sequence, self._clock() - sequence.arrival_s, served=False)
        else:
            self.running.remove(sequence)
        sequence.chunk = None
        sequence.phase = Phase.DONE
        self._leave(sequence)

    def land(self, rows: list[Row]) -> None:
        """A committed plan's rows are in flight no more."""
        page_size, running = self.memory.residency.page_size, Phase.RUNNING
        for row in rows:
            sequence = row.sequence
            in_flight = sequence.in_flight = sequence.in_flight - 1
            if sequence.num_computed >= (sequence.num_inserted_pages + 1) * page_size:
                self.memory.offer_prefix(sequence)
            if not in_flight and sequence.phase is not running:
                self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """No outstanding plan touches the sequence any more."""
        self._leaving.discard(sequence.order)
        if sequence.phase is Phase.PREEMPTING:
            self._requeue(sequence)
        elif sequence.phase is Phase.DONE:
            self.memory.leave(sequence)

    def check_integrity(self, in_flight: list[Sequence]) -> None:
        """Raise AssertionError unless pages, slots and queues agree; `in_flight`: those in outstanding plans."""
        holders = {sequence.order: sequence for sequence in (*in_flight, *self.running)}
        for sequence in holders.values():
            sequence.check_integrity()
        self.memory.check_integrity(list(holders.values()))
        orders = [sequence.order for sequence in self.running]
        assert orders == sorted(orders), "running sequences are not in order of arrival"
        waiting = [sequence for queue in self.waiting.values() for sequence in queue.ordered(self._clock())]
        live = [*self.running, *waiting]
        assert sorted(sequence.request_id for sequence in live) == sorted(self.sequences), "a request is lost"
        leaving = {sequence.order for sequence in in_flight if sequence.phase is not Phase.RUNNING}
        assert self._leaving == leaving, "pages are awaited in vain"

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        sequence.phase = Phase.PREEMPTING
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.in_flight:
            self._leaving.add(sequence.order)
        else:
            self.settle(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.memory.give_back(sequence)
        sequence.start_over()
        self.waiting[sequence.lane].add(sequence, self._clock())
