"""Rank 0's launcher: before it does anything on its card it tells the other ranks, which do the same on theirs.

What follows from a plan (rows, graphs, pieces, samples) every rank works out for itself; what depends on time (when a
piece is launched, when a plan is left) rank 0 decides.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from twinpath.engine.cuda.rank_messages import Drop, Finish, Launch, Message, RankChannel, RankClosed, Start
from twinpath.engine.cuda.step import Job
from twinpath.engine.step_output import StepOutput
from twinpath.errors import EngineError
from twinpath.types import Float32s


class Launcher(Protocol):
    """Starts jobs, launches their pieces and reads their results, always in order: see `cuda_step.StepLauncher`."""

    def start(self, job: Job) -> None: ...

    def launch(self, job: Job) -> None: ...

    def collect(self, job: Job) -> int: ...

    def finish(self, job: Job) -> StepOutput: ...

    def drop(self, job: Job) -> None: ...


class LeadingLauncher:
    """A launcher that others follow through `channels`."""

    def __init__(self, launcher: Launcher, channels: Sequence[RankChannel]) -> None:
        self._launcher, self._channels = launcher, channels
        self._residuals = _ResidualNumbers()
        #: Not sent yet: they cost nobody time with the next message.
        self._waiting: list[Message] = []

    def start(self, job: Job) -> None:
        plan, masks, forgotten = job.plan, job.plan.masks, self._residuals.take_forgotten()
        self._send(
            Start(
                plan=replace(plan, residual=None, masks=None),
                residual=None if plan.residual is None else self._residuals.number(plan.residual),
                mask_segments=None if masks is None else masks.segments,
                num_words=0 if masks is None else masks.words.shape[1],
                forgotten=forgotten,
            )
        )
        self._launcher.start(job)

    def launch(self, job: Job) -> None:
        assert job.pieces
        masks = job.plan.masks if job.pieces[0].needs_masks else None
        if masks is not None:
            masks.wait()
        self._send(Launch(job.plan.step_id, None if masks is None else masks.words))
        self._launcher.launch(job)

    def collect(self, job: Job) -> int:
        return self._launcher.collect(job)

    def finish(self, job: Job) -> StepOutput:
        output = self._launcher.finish(job)
        self._waiting.append(Finish(job.plan.step_id, dict(output.tokens)))
        return output

    def drop(self, job: Job) -> None:
        self._launcher.drop(job)
        if job.pieces is not None:  # Else nobody heard of it.
            self._waiting.append(Drop(job.plan.step_id))

    def _send(self, message: Message) -> None:
        messages, self._waiting = [*self._waiting, message], []
        try:
            for channel in self._channels:
                for each in messages:
                    channel.send(each)
        except RankClosed:
            raise EngineError("another rank of the model is gone") from None


class _ResidualNumbers:
    """Numbers for the arrays that name residuals: see `EngineInfo.keeps_residual`."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Float32s], int]] = {}
        self._next = 0

    def number(self, array: Float32s) -> int:
        known = self._known.get(id(array))
        if known is None:
            self._next += 1
            self._known[id(array)] = known = (weakref.ref(array), self._next)
        return known[1]

    def take_forgotten(self) -> tuple[int, ...]:
        """Numbers of arrays that are gone, each told once. To be called before `number`: another array may have the
        place of one that is gone."""
        gone = [key for key, (array, _) in self._known.items() if array() is None]
        return tuple(self._known.pop(key)[1] for key in gone)
