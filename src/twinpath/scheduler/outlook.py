"""What is known now of the way to a first token: the roster's sequences as ghosts of a rollout."""

from __future__ import annotations

from twinpath.scheduler.ghosts import Ghost, GhostChunk, GhostRow
from twinpath.scheduler.lanes import LanePlanner
from twinpath.scheduler.rollout import Rollout, work_ms
from twinpath.scheduler.roster import Roster
from twinpath.scheduler.sequence import SHORT_ROWS, Lane, Sequence
from twinpath.scheduler.step import Step

#: Of those that wait ahead, so many are played through; the work of the others counts at the rate found. Of those
#: behind, so many may ride in the same steps.
_MOST_AHEAD = 32
_MOST_BEHIND = 4
_ENDLESS = 1 << 30
#: Who waits and may say so much will be a stream among others.
_STREAM_TOKENS = 32
_NO_RANK = (False, 0.0, 0)

#: Time between two steps is followed so slowly; a longer one was a rest.
_GAIN = 0.02
_LONGEST_GAP_MS = 1.0


class Outlook:
    """Looks ahead for arrivals, and back at how long steps took with all that is around them."""

    def __init__(self, planner: LanePlanner, roster: Roster, num_layers: int) -> None:
        self.planner = planner
        self.roster = roster
        self._num_layers = num_layers
        #: From the end of a step to the start of the next: planning, telling, the way to the engine and back.
        self.gap_ms = 0.0
        #: When the last step should have ended; 0: not known.
        self._end_s = 0.0

    def note_step(self, step: Step, elapsed_ms: float) -> None:
        """It is done."""
        self.planner.note_result(step, elapsed_ms)
        gap_ms = (step.planned_s - self._end_s) * 1e3
        if self._end_s and 0.0 < gap_ms < _LONGEST_GAP_MS:
            self.gap_ms += _GAIN * (gap_ms - self.gap_ms)
        self._end_s = step.planned_s + elapsed_ms / 1e3 if elapsed_ms > 0.0 else 0.0

    def first_token_ms(self, sequence: Sequence, now_s: float) -> float:
        """From the end of the planned steps to the first token of a waiting sequence."""
        queue = self.roster.all_waiting()
        index = queue.index(sequence)
        first = max(index - _MOST_AHEAD, 0)
        rest_ms = sum(work_ms(self.planner.cost, _num_cached(other), other.num_uncached) for other in queue[:first])
        waiting = [self._ghost(other, now_s) for other in queue[first : index + 1 + _MOST_BEHIND]]
        target = waiting[index - first]
        running, chunks = self._running(now_s)
        if sequence.lane is Lane.FLEX:
            # In so long a time others come for those that go.
            for ghost in (*running, *[other for other in waiting if other.num_outputs_left >= _STREAM_TOKENS]):
                ghost.num_outputs_left = _ENDLESS
        rollout = Rollout(
            self.planner, self.gap_ms, self._num_layers, self.roster.max_running, running, waiting, chunks
        )
        return rollout.until_first_token(target, rest_ms)

    def _ghost(self, sequence: Sequence, now_s: float) -> Ghost:
        return Ghost(sequence, self.roster.rank(sequence, now_s), _num_cached(sequence))

    def _running(self, now_s: float) -> tuple[list[Ghost], list[GhostChunk]]:
        ghosts: list[Ghost] = []
        chunks: dict[int, GhostChunk] = {}
        for sequence in self.roster.running:
            chunk = sequence.chunk
            has_prefill = chunk is not None or sequence.num_remaining > SHORT_ROWS
            # Streams go along with every step: their order matters to nobody.
            ghost = Ghost(sequence, self.roster.rank(sequence, now_s) if has_prefill else _NO_RANK)
            ghosts.append(ghost)
            if chunk is None:
                continue
            found = chunks.setdefault(id(chunk), GhostChunk([], chunk.lane, chunk.next_layer))
            for row in chunk.rows:
                if row.sequence is sequence:
                    found.rows.append(GhostRow(ghost, row.start, row.length))
                    ghost.num_planned, ghost.chunk = row.start, found
        return ghosts, list(chunks.values())


def _num_cached(sequence: Sequence) -> int:
    """Of a sequence that waits, as at its arrival."""
    return sequence.num_known - sequence.num_uncached
