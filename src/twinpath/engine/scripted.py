"""The scripted engine: says what a JSON file tells it to, fails, hangs or dies on cue, and checks every plan it is
given.

It keeps a model of KV memory (which token was written at which place of which page, in which layer) and of the
residual stream, and compares both with the history of the slot in every segment: a scheduler that mixes pages up,
reuses them too early, skips a row or a layer meets a `ScriptError`, not a wrong answer.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from pathlib import Path
from threading import Condition, Event
from typing import Annotated, Any

import msgspec
import numpy as np

from twinpath.errors import ModelLoadError
from twinpath.types import (
    PENDING_TOKEN,
    EngineInfo,
    Float32s,
    Int32s,
    SamplingParams,
    SlotInit,
    StepPlan,
    StepResult,
    TokenLogprob,
)

#: Far more than any test needs; a typing mistake must not ask for all memory.
_MOST = 2**20
Size = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Index = Annotated[int, msgspec.Meta(ge=0)]
Span = Annotated[float, msgspec.Meta(ge=0)]

#: The byte vocabulary's end-of-turn id: 0..255 are the bytes.
END_ID = 256


class ScriptError(Exception):
    """A plan broke the engine contract: a scheduler bug."""


class ScriptedShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine claims to be, and how long it pretends to work."""

    depth: Size = 1
    page_size: Size = 16
    num_pages: Size = 512
    max_model_len: Size = 4096
    max_slots: Size = 64
    max_step_tokens: Size = 4096
    vocab_size: Size = 512
    layers: Size = 4
    step_ms: Span = 0.0
    prefill_us_per_token: Span = 0.0


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer. `*_at`: the output index before which a cue comes. `chunks`: tokens per step, repeated."""

    match: str | None = None
    once: bool = False
    text: str = ""
    tokens: tuple[Index, ...] | None = None
    bytes_hex: str | None = None
    repeat: Size = 1
    chunks: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1)] = (1,)
    step_ms: Span = 0.0
    fail_at: Index | None = None
    hang_at: Index | None = None
    crash_at: Index | None = None
    kill_at: Index | None = None
    stop_at: Index | None = None
    raise_at: Index | None = None

    def answer(self) -> list[int]:
        if self.tokens is not None:
            return list(self.tokens) * self.repeat
        return list(bytes.fromhex(self.bytes_hex) if self.bytes_hex is not None else self.text.encode()) * self.repeat


class ScriptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scripted model."""

    engine: ScriptedShape = ScriptedShape()
    eos_id: int = END_ID
    scripts: tuple[Script, ...] = ()
    default: Script = Script(text="ok")


def load_script(path: Path) -> ScriptFile:
    """Raises: ModelLoadError naming the file and what is wrong."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ScriptFile)
    except OSError as error:
        raise ModelLoadError(f"cannot read scripted model {path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ModelLoadError(f"scripted model {path} is not valid: {error}") from None


class _Slot:
    """A bound request: its history (prompt, then what was sampled), and the script it follows."""

    def __init__(self, init: SlotInit, script: Script) -> None:
        self.sampling: SamplingParams = init.sampling
        self.history: list[int] = init.history.tolist()
        self.num_prompt = init.num_prompt
        self.script = script
        self.answer = script.answer()
        #: Why it failed: its later segments fail too until it is bound again.
        self.failure: str | None = None


class ScriptedEngine:
    """A contracts.Engine. Plans run when polled, in order. Tests read `plans`, `interrupts` and `num_tokens`."""

    def __init__(self, script: ScriptFile | None = None, *, keep_plans: bool = False) -> None:
        self.script = script or ScriptFile()
        shape = self.script.engine
        self.info = EngineInfo(
            num_layers=shape.layers,
            hidden_size=8,
            vocab_size=shape.vocab_size,
            max_model_len=shape.max_model_len,
            page_size=shape.page_size,
            num_pages=shape.num_pages,
            max_slots=shape.max_slots,
            max_step_tokens=shape.max_step_tokens,
            depth=shape.depth,
            description="scripted",
        )
        self.facts = {"engine": "scripted"}
        #: Every plan seen, when asked to keep them.
        self.plans: list[StepPlan] = []
        self.interrupts: list[int] = []
        self.num_tokens = 0
        self._keep_plans = keep_plans
        self._pages = np.full((shape.layers, shape.num_pages, shape.page_size), -1, np.int32)
        self._slots: dict[int, _Slot] = {}
        self._used_scripts: set[int] = set()
        self._queue: deque[StepPlan] = deque()
        self._interrupted: set[int] = set()
        self._wake = Condition()
        self._num_layers_done = 0
        self._closed = Event()

    # ---------------------------------------------------------------------------------------------- contracts.Engine

    def submit(self, plan: StepPlan) -> int:
        if len(self._queue) >= self.info.depth:
            raise ScriptError(f"{len(self._queue) + 1} plans outstanding, depth is {self.info.depth}")
        self._check_shapes(plan)
        _check_layers(plan, self.info)
        if self._keep_plans:
            self.plans.append(plan)
        self._queue.append(plan)
        return plan.step_id

    def poll(self, timeout_s: float | None = None) -> StepResult | None:
        if not self._queue:
            return None
        plan = self._queue[0]
        interrupted = not self._pretend_work(plan)
        self._queue.popleft()
        if interrupted:
            if plan.residual is not None:
                plan.residual[:] = np.nan
            with self._wake:  # Later plans build on this one.
                self._interrupted.discard(plan.step_id)
                self._interrupted.update(later.step_id for later in self._queue)
            empty = np.zeros(0, np.int32)
            return StepResult(plan.step_id, np.zeros(len(plan.slots), np.int32), empty, interrupted=True)
        result = self._run(plan)
        for slot in plan.releases:
            self._slots.pop(slot, None)
        return result

    def interrupt(self, step_id: int) -> None:
        with self._wake:
            self.interrupts.append(step_id)
            if any(plan.step_id == step_id for plan in list(self._queue)):
                self._interrupted.add(step_id)
                self._wake.notify_all()

    def prepare(self) -> bool:
        return False

    def progress(self) -> int:
        return self._num_layers_done

    def close(self) -> None:
        self._closed.set()
        with self._wake:
            self._wake.notify_all()

    # ------------------------------------------------------------------------------------------------------ one plan

    def _pretend_work(self, plan: StepPlan) -> bool:
        """Take the time the script says, layer by layer; False when interrupted."""
        shape = self.script.engine
        bound = [self._slots[slot] for slot in plan.slots.tolist() if slot in self._slots]
        step_ms = max([shape.step_ms, *(slot.script.step_ms for slot in bound)])
        layer_s = (step_ms / 1e3 + len(plan.tokens) * shape.prefill_us_per_token / 1e6) / shape.layers
        for _ in range(plan.layer_begin, plan.layer_end):
            with self._wake:
                end = time.monotonic() + layer_s
                while (left := end - time.monotonic()) > 0 and not self._must_stop(plan):
                    self._wake.wait(left)
                if self._must_stop(plan):
                    return False
            self._num_layers_done += 1
        return True

    def _must_stop(self, plan: StepPlan) -> bool:
        return plan.step_id in self._interrupted or self._closed.is_set()

    def _run(self, plan: StepPlan) -> StepResult:
        for init in plan.inits:
            self._slots[init.slot] = _Slot(init, self._choose_script(init))
        counts: list[int] = []
        tokens: list[int] = []
        logprobs: dict[int, list[TokenLogprob]] = {}
        prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        failures: dict[int, str] = {}
        masks = plan.masks.wait() if plan.masks is not None else {}
        begin = 0
        for index in range(len(plan.slots)):
            end = begin + int(plan.lengths[index])
            slot = self._slots.get(int(plan.slots[index]))
            if slot is None:
                raise ScriptError(f"slot {plan.slots[index]} is not initialised")
            start = int(plan.starts[index])
            if slot.failure is not None:
                failures[index] = slot.failure
                counts.append(0)
                begin = end
                continue
            self._write_kv(slot, start, plan.tokens[begin:end], plan.block_tables[index], plan)
            if plan.residual is not None:
                self._carry_residual(plan.residual[begin:end], slot, start, plan)
            if plan.layer_end < self.info.num_layers:
                counts.append(0)
                begin = end
                continue
            if slot.sampling.prompt_logprobs is not None:
                prompt_logprobs[index] = _prompt_logprobs(slot, start, end - begin)
            begin = end
            new_tokens: list[int] = []
            if plan.sample[index]:
                if slot.script.fail_at is not None and len(slot.history) - slot.num_prompt >= slot.script.fail_at:
                    failures[index] = slot.failure = "scripted failure"
                else:
                    new_tokens = self._sample(slot, start + int(plan.lengths[index]), masks.get(index))
                    if not new_tokens:
                        failures[index] = slot.failure = "no token is legal"
            if new_tokens and slot.sampling.logprobs is not None:
                logprobs[index] = [_logprob(token, slot.sampling.logprobs) for token in new_tokens]
            counts.append(len(new_tokens))
            tokens += new_tokens
        self.num_tokens += len(tokens)
        return StepResult(
            plan.step_id,
            np.array(counts, np.int32),
            np.array(tokens, np.int32),
            logprobs,
            prompt_logprobs,
            failures,
        )

    def _choose_script(self, init: SlotInit) -> Script:
        bound = self._slots.get(init.slot)
        if bound is not None and bound.history[: bound.num_prompt] == init.history[: init.num_prompt].tolist():
            return bound.script  # Bound again after an interrupted step.
        prompt = bytes(token for token in init.history[: init.num_prompt].tolist() if 0 <= token < 256)
        is_new = len(init.history) == init.num_prompt
        for index, script in enumerate(self.script.scripts):
            if is_new and index in self._used_scripts:
                continue
            if script.match is None or script.match.encode() in prompt:
                if script.once:
                    self._used_scripts.add(index)
                return script
        return self.script.default

    def _sample(self, slot: _Slot, position: int, mask: Int32s | None) -> list[int]:
        """The script's next tokens; under a mask one, and the lowest legal id where the script's is not."""
        if position != len(slot.history):
            raise ScriptError(f"sampled position {position}, but the slot knows {len(slot.history)} tokens")
        index = position - slot.num_prompt
        self._act_on_cue(slot.script, index)
        count = _chunk_length(slot.script, index) if self.info.depth == 1 else 1
        answer, end_id = slot.answer, self.script.eos_id
        new_tokens = [answer[i] if i < len(answer) else end_id for i in range(index, index + count)]
        if mask is not None:
            new_tokens = _legal(new_tokens[0], mask)
        slot.history += new_tokens
        return new_tokens

    def _act_on_cue(self, script: Script, index: int) -> None:
        if index == script.crash_at:
            os._exit(17)
        if index == script.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == script.stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)
        if index == script.raise_at:
            raise RuntimeError("scripted exception")
        if index == script.hang_at:
            self._closed.wait()

    def _carry_residual(self, residual: Float32s, slot: _Slot, start: int, plan: StepPlan) -> None:
        """After layer n a row's stream is its token, its position and n + 1."""
        rows = np.zeros_like(residual)
        rows[:, 0] = slot.history[start : start + len(rows)]
        rows[:, 1] = np.arange(start, start + len(rows))
        rows[:, 2] = plan.layer_begin
        if plan.layer_begin and (residual != rows).any():
            raise ScriptError(f"the residual before layer {plan.layer_begin} is not that of the segment's rows")
        if plan.layer_end < self.info.num_layers:
            rows[:, 2] = plan.layer_end
            residual[:] = rows

    def _write_kv(self, slot: _Slot, start: int, tokens: Int32s, table: Int32s, plan: StepPlan) -> None:
        """Write the tokens where the table says, then check that everything up to here is the slot's history."""
        end = start + len(tokens)
        if end > len(slot.history):
            raise ScriptError(f"a segment reaches position {end}, but the slot knows {len(slot.history)} tokens")
        history = np.array(slot.history[:end], np.int32)
        known = tokens != PENDING_TOKEN
        if (tokens[known] != history[start:][known]).any():
            raise ScriptError("a segment's tokens differ from the slot's history")
        size = self.info.page_size
        pages = table[: -(-end // size)]
        if len(pages) * size < end or (pages < 0).any() or (pages >= self.info.num_pages).any():
            raise ScriptError(f"the block table does not cover position {end - 1}")
        layers = self._pages[plan.layer_begin : plan.layer_end]
        for position in range(start, end):
            layers[:, pages[position // size], position % size] = history[position]
        if (layers[:, pages].reshape(len(layers), -1)[:, :end] != history).any():
            raise ScriptError("KV under a segment is not its own: a page was shared, reused too early or never written")

    def _check_shapes(self, plan: StepPlan) -> None:
        num_segments = len(plan.slots)
        arrays: dict[str, Any] = {"starts": plan.starts, "lengths": plan.lengths, "sample": plan.sample}
        if any(len(array) != num_segments for array in arrays.values()) or len(plan.block_tables) != num_segments:
            raise ScriptError("a plan's arrays differ in length")
        if not num_segments or len(set(plan.slots.tolist())) != num_segments:
            raise ScriptError("a plan is empty or names a slot twice")
        if (plan.lengths < 1).any() or int(plan.lengths.sum()) != len(plan.tokens):
            raise ScriptError("segment lengths do not add up to the tokens")
        if len(plan.tokens) > self.info.max_step_tokens or plan.slots.max() >= self.info.max_slots:
            raise ScriptError("a plan is larger than the engine allows")


def _check_layers(plan: StepPlan, info: EngineInfo) -> None:
    if not 0 <= plan.layer_begin < plan.layer_end <= info.num_layers:
        raise ScriptError(f"layers [{plan.layer_begin}, {plan.layer_end}) of {info.num_layers}")
    is_part = plan.layer_end - plan.layer_begin < info.num_layers
    if is_part and (plan.residual is None or plan.residual.shape != (len(plan.tokens), info.hidden_size)):
        raise ScriptError("a part of the layers needs a residual row for every token")


def _legal(token: int, mask: Int32s) -> list[int]:
    legal: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return [token] if token in legal else legal[:1]


def _chunk_length(script: Script, index: int) -> int:
    """Tokens from output `index` to the end of the chunk it lies in, or to the next cue; `chunks` repeats."""
    offset = index % sum(script.chunks)
    for chunk in script.chunks:
        if offset < chunk:
            break
        offset -= chunk
    cues = (script.fail_at, script.hang_at, script.crash_at, script.kill_at, script.stop_at, script.raise_at)
    return min([chunk - offset, *(cue - index for cue in cues if cue is not None and cue > index)])


def _logprob(token: int, num_top: int) -> TokenLogprob:
    """A fixed formula, so that tests can say what must come back: the token at -(1 + id mod 7) / 8, others below it."""
    value = -(1 + token % 7) / 8
    return TokenLogprob(token, value, tuple(((token + rank) % 256, value - rank) for rank in range(num_top)))


def _prompt_logprobs(slot: _Slot, start: int, length: int) -> list[TokenLogprob]:
    num_top = slot.sampling.prompt_logprobs or 0
    return [_logprob(slot.history[p + 1], num_top) for p in range(start, start + length) if p + 1 < slot.num_prompt]
