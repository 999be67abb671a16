"""The scheduler: requests in, step plans out; step results in, events out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from twinpath.contracts import Clock, Constraint
from twinpath.kv import PagePool, PrefixCache, PrefixKeys
from twinpath.scheduler.admission import Admission
from twinpath.scheduler.answer import refuse, tell
from twinpath.scheduler.chunk import Row
from twinpath.scheduler.constraint import counted, fill_masks, masks_for, refusal
from twinpath.scheduler.cost import CostModel
from twinpath.scheduler.forecast import Forecast
from twinpath.scheduler.lanes import LanePlanner, LaneSettings
from twinpath.scheduler.memory import DEFAULT_MEMORY, Memory, MemorySettings
from twinpath.scheduler.outlook import Outlook
from twinpath.scheduler.policy import FirstComeFirstServed, Policy
from twinpath.scheduler.roster import Roster
from twinpath.scheduler.rows import Picked, RowPicker
from twinpath.scheduler.sequence import Phase, Sequence
from twinpath.scheduler.step import Step, build_plan
from twinpath.types import (
    EngineInfo,
    Event,
    FinishEvent,
    FinishReason,
    Request,
    StepPlan,
    StepResult,
    TokenLogprob,
    TokensEvent,
)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What one step may hold, resolved against an engine."""

    max_num_seqs: int
    #: Tokens in one step, decode and prefill rows together.
    max_num_batched_tokens: int
    memory: MemorySettings = DEFAULT_MEMORY
    #: None: lanes off, prefill fills every step up to the limit.
    lanes: LaneSettings | None = None
    #: Refuse what is predicted to miss its target for the first token.
    shed: bool = False


class Scheduler:
    """Continuous batching over one page pool: add and cancel at any time, plan while the engine takes more, commit.

    Invariant: every added request gets exactly one terminal event; a sequence keeps its slot and pages until no
        outstanding plan touches it. Without lanes running sequences are older than waiting ones, and only the youngest
        is preempted, so the oldest always ends.
    """

    def __init__(
        self,
        info: EngineInfo,
        limits: SchedulerLimits,
        policy: Policy | None = None,
        *,
        clock: Clock | None = None,
        cost: CostModel | None = None,
    ) -> None:
        """`clock`: for deadlines and promises; without one no time passes."""
        self.info = info
        self.limits = limits
        self.policy: Policy = policy or FirstComeFirstServed()
        self.cost = cost or CostModel()
        #: Prompt plus output of one request: the model's window, or all of the pool when that is smaller.
        self.window_tokens = min(info.max_model_len, info.num_pages * info.page_size)
        self.max_running = min(limits.max_num_seqs, info.max_slots, limits.max_num_batched_tokens)
        self.num_steps = 0
        #: Answers that were completed because their tokens ran out.
        self.num_closed_out = 0
        self._clock: Clock = clock or (lambda: 0.0)
        self._outstanding: deque[Step] = deque()
        self._next_order = 0
        self._next_step_id = 0
        self.memory = Memory(
            info, self.window_tokens, limits.memory, self.policy, self._clock, has_lanes=limits.lanes is not None
        )
        self._roster = Roster(self.policy, self.memory, self._clock, self.max_running)
        self._num_replans = 0
        #: Rows committed last, until `settle`.
        self._landed: list[Row] = []
        #: Their step, its result and how often it ran, for the cost model.
        self._observed: tuple[Step, StepResult, int] | None = None
        #: Plan as without lanes, to measure steps of a given shape.
        self.lanes_paused = False
        self.planner: LanePlanner | None = None
        #: Promises of first tokens and their outcomes; None without lanes.
        self.forecast: Forecast | None = None
        #: Who comes in on what promise; None without lanes: then nothing is promised.
        self.admission: Admission | None = None
        if limits.lanes is not None:
            max_rows, grain = limits.max_num_batched_tokens, info.chunk_grain
            self.planner = LanePlanner(
                limits.lanes, self.cost, info.num_layers, max_rows, grain, pauses=info.pauses, goes_on=info.goes_on
            )
            self.forecast = Forecast(self.cost, limits.max_num_batched_tokens)
            outlook = Outlook(self.planner, self._roster, info.num_layers)
            self.admission = Admission(outlook, self.forecast, self._clock, shed=limits.shed)
        self._picker = RowPicker(info, limits.max_num_batched_tokens, self._roster, self.planner, self._clock)

    @property
    def pool(self) -> PagePool:
        return self.memory.pool

    @property
    def prefix(self) -> PrefixCache:
        return self.memory.prefix

    @property
    def roster(self) -> Roster:
        return self._roster

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    @property
    def num_preemptions(self) -> int:
        return self._roster.num_preemptions

    @property
    def num_outstanding(self) -> int:
        return len(self._outstanding)

    def add(self, request: Request, constraint: Constraint | None = None) -> list[Event]:
        """Queue a request and what follows its grammar, if any. The events returned are its whole life when it cannot
        or need not run."""
        if request.request_id in self._roster.sequences:
            return []  # The gateway refuses double ids; an error here would end the first request's stream.
        num_prompt, sampling = len(request.prompt_ids), request.sampling
        window_tokens = self.memory.window_tokens(request, self.window_tokens)
        if num_prompt == 0 or num_prompt >= window_tokens:
            return [refuse(request, window_tokens)]
        max_outputs = min(sampling.max_tokens, window_tokens - num_prompt)
        keys = PrefixKeys(self.info.page_size, request.cache_salt)
        sequence = Sequence(request, self._next_order, max_outputs, keys, constraint)
        if max_outputs == 0 and sequence.prompt_logprobs is None:
            return [FinishEvent(sequence.request_id, FinishReason.LENGTH, sequence.usage)]
        self._next_order += 1
        sequence.arrival_s = sequence.arrival_s or self._clock()
        self.memory.arrive(sequence, request)
        if self.admission is None or self.lanes_paused:
            self._roster.add(sequence)
            return []
        return self.admission.admit(sequence, self.memory.num_cached(sequence), self._outstanding)

    def cancel(self, request_id: str) -> list[Event]:
        """End a request now; unknown and finished ids are ignored."""
        sequence = self._roster.sequences.get(request_id)
        if sequence is None:
            return []
        self._roster.end(sequence)
        if self.forecast is not None:
            self.forecast.forget(sequence)
        return [FinishEvent(request_id, FinishReason.ABORT, sequence.usage)]

    def interruptible(self) -> tuple[tuple[str, int], ...]:
        """(request id, step id) of outstanding steps that are mostly one request's prefill, for its cancellation.

        Not twice in a row when others have rows there: they move on though someone submits and cancels long
        prompts all day.
        """
        found: tuple[tuple[str, int], ...] = ()
        for step in self._outstanding:
            request_id = step.dominant()
            if request_id and not step.void and (len(step.rows) == 1 or not self._num_replans):
                found += ((request_id, step.step_id),)
        return found

    def plan(self, max_repeat: int = 1) -> StepPlan | None:
        """The next step, or None when nothing can run until a result is committed or a request is added.

        `max_repeat`: steps until the caller expects an arrival or an end; while the plan cannot change it says that it
        may run so often (`StepPlan.repeat`).
        """
        step = self.next_step(max_repeat)
        return None if step is None else build_plan(step, self.memory.residency.block_tables)

    def next_step(self, max_repeat: int = 1) -> Step | None:
        """What `plan` says, before it is written in arrays: for an engine that computes nothing."""
        if self._outstanding and self._outstanding[0].void:
            return None  # A new plan behind void ones could be taken for one that builds on them.
        picked = self._picker.pick(with_lanes=not self.lanes_paused)
        return None if picked is None else self._build(picked, max_repeat)

    def _build(self, picked: Picked, max_repeat: int) -> Step:
        rows, chunk = picked.rows, picked.chunk
        begin, end = picked.layers or (0, self.info.num_layers)
        step = Step(self._next_step_id, rows, self.memory.residency.take_releases(), begin, end, chunk)
        if max_repeat > 1 and picked.may_repeat and self.info.depth == 1:
            step.repeat = self._roster.extend_ahead(rows, max_repeat)
        self._next_step_id += 1
        self._outstanding.append(step)
        step.measure(self.info.num_layers)
        step.masks = masks_for(rows, self.info.vocab_size) if end == self.info.num_layers else None
        if self.planner is not None:
            step.planned_s = self._clock()
            step.beside, is_beside = picked.beside, picked.beside is not None
            step_ms = self.planner.step_ms(step.shape, is_beside=is_beside)
            step.predicted_ms = chunk.budget_ms if chunk and chunk.budget_ms else step_ms
            self.planner.note_planned(step.predicted_ms, step.shape.num_decode > 0, is_beside)
            step.period = self.planner.period
        return step

    def fill_masks(self) -> None:
        """Fill the masks of the plan made last: after its `submit`, so that a device's step goes on meanwhile."""
        step = self._outstanding[-1]
        if step.masks is not None and not self.info.asks_for_masks:
            fill_masks(step.masks)

    def commit(self, result: StepResult, *, settle: bool = True) -> list[Event]:
        """Account for the oldest outstanding plan; what its requests are to be told. Without `settle` it comes next."""
        step = self._outstanding.popleft()
        assert step.step_id == result.step_id, "results must come back in submission order"
        events: list[Event] = []
        if step.chunk is not None:
            self._picker.end_slice(step.chunk, result)
        if result.interrupted or step.void:
            self._void(step)
        else:
            num_steps = max(int(result.counts[0]), 1) if step.repeat > 1 else 1
            self.num_steps += num_steps
            self._num_replans = 0
            self._observed = (step, result, num_steps)
            if self.admission is not None:
                self.admission.outlook.note_step(step, result.elapsed_ms)
            self._commit_rows(step, result, events)
        self._landed = step.rows
        if settle:
            self.settle()
        return events

    def settle(self) -> None:
        """Make new prefixes findable, take back what ended requests held, learn what the step took."""
        landed, self._landed = self._landed, []
        self._roster.land(landed)
        if self._observed is not None:
            step, result, num_steps = self._observed
            self.cost.observe(step.shape, step.measured_ms(result) / num_steps)
            self._observed = None

    def _commit_rows(self, step: Step, result: StepResult, events: list[Event]) -> None:
        counts, tokens = result.counts.tolist(), result.tokens.tolist()
        is_partial = step.layer_end < self.info.num_layers or result.paused_layer is not None
        is_run, failures, logprobs = step.repeat > 1, result.failures, result.logprobs
        is_plain = not (is_partial or failures or logprobs)
        begin = 0
        for index, row in enumerate(step.rows):
            end = begin + counts[index]
            new_tokens, begin = tokens[begin:end], end
            if (sequence := row.sequence).phase is Phase.DONE:
                continue  # It stopped while this row was in flight: overrun.
            if is_plain and new_tokens and sequence.goes_on_after(new_tokens):
                # Most rows: more of a stream, and nothing else to look at.
                num_more = len(new_tokens) - 1 if is_run else 0
                sequence.num_planned += num_more
                sequence.num_computed = row.start + row.length + num_more
                sequence.num_pending -= 1
                sequence.append(new_tokens)
                events.append(TokensEvent(sequence.request_id, new_tokens))
                continue
            failure = failures.get(index) if failures else None
            if failure is None:
                if is_partial:
                    continue
                if row.sample and not new_tokens:
                    failure = "the engine returned no token"
            is_free = sequence.constraint is None
            error = None if is_free and failure is None else refusal(sequence, failure)
            if error is not None:
                self._roster.end(sequence)
                events.append(error)
                continue
            sequence.num_computed = row.start + row.length
            if is_run:
                num_more = len(new_tokens) - 1
                sequence.num_planned += num_more
                sequence.num_computed += num_more
            sequence.num_pending -= row.sample
            if sequence.prompt_logprobs is not None:
                sequence.prompt_logprobs += result.prompt_logprobs.get(index, ())
            if row.sample:
                told = new_tokens if is_free else counted(sequence, new_tokens, self.info)
                if told is not None:
                    self._emit(sequence, told, logprobs.get(index) if logprobs else None, events)
            elif sequence.max_outputs == 0 and sequence.num_computed == sequence.num_known:
                self._emit(sequence, [], None, events)
            if sequence.num_computed > sequence.num_known:
                # Repeats beyond a stop token wrote KV of tokens that do not count.
                sequence.num_computed = sequence.num_known

    def _emit(
        self, sequence: Sequence, new_tokens: list[int], logprobs: list[TokenLogprob] | None, events: list[Event]
    ) -> None:
        if not sequence.started and self.forecast is not None:
            self.forecast.note_first_token(sequence, self._clock())
        event, reason = tell(sequence, new_tokens, logprobs)
        events.append(event)
        if reason is not None:
            self.num_closed_out += sequence.constraint is not None and sequence.constraint.closed_out
            sequence.is_complete = True
            self._roster.end(sequence)
            events.append(FinishEvent(sequence.request_id, reason, sequence.usage))

    def _void(self, step: Step) -> None:
        """Nothing of `step` counts. Later outstanding plans build on it: they are void too, all is planned anew."""
        if not step.void:
            self._num_replans += 1
            for later in (step, *self._outstanding):
                later.void = True
                for row in later.rows:
                    if row.sequence.phase is not Phase.DONE:
                        row.sequence.roll_back()
        self.memory.residency.return_releases(step.releases)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages, slots, queues and counters agree. For tests."""
        self._roster.check_integrity([row.sequence for step in self._outstanding for row in step.rows])
        for sequence in self._roster.running:
            assert sequence.chunk is None or sequence.chunk in self._picker.chunks, "a chunk is lost"
