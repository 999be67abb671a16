"""A rank that follows: what rank 0 tells it, on its own card."""

from __future__ import annotations

import gc
from dataclasses import replace
from time import monotonic

import numpy as np

from twinpath.engine.cuda.leader import Launcher
from twinpath.engine.cuda.rank_messages import Drop, Finish, Launch, Message, Ping, RankChannel, Start
from twinpath.engine.cuda.step import Job
from twinpath.errors import EngineError
from twinpath.types import Float32s, TokenMasks

#: No work for so long: nobody waits.
_REST_S = 0.5


class FollowedPlans:
    """On a rank that follows: does on its launcher what rank 0's messages say.

    Raises (from `take`): EngineError when the results are not rank 0's, or as the launcher does.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._jobs: dict[int, Job] = {}
        self._residuals: dict[int, Float32s] = {}

    def take(self, message: Message) -> None:
        match message:
            case Start():
                self._start(message)
            case Launch(step_id, masks):
                job = self._jobs[step_id]
                if masks is not None and job.plan.masks is not None:
                    job.plan.masks.words[:] = masks
                    job.plan.masks.ready.set()
                self._launcher.launch(job)
            case Finish(step_id, tokens):
                job = self._jobs.pop(step_id)
                for mark, _ in job.marks:
                    mark.synchronize()
                own = self._launcher.finish(job).tokens
                if own != tokens:
                    raise EngineError(f"step {step_id} gave {own} here and {tokens} on rank 0")
            case Drop(step_id):
                self._launcher.drop(self._jobs.pop(step_id))

    def _start(self, message: Start) -> None:
        for number in message.forgotten:
            self._residuals.pop(number, None)
        self._launcher.start(self._job(message))

    def _job(self, message: Start) -> Job:
        residual = None
        if message.residual is not None:
            residual = self._residuals.setdefault(message.residual, np.empty(0, np.float32))
        masks = None
        if message.mask_segments is not None:
            words = np.zeros((len(message.mask_segments), message.num_words), np.int32)
            masks = TokenMasks(message.mask_segments, words)
        plan = replace(message.plan, residual=residual, masks=masks)
        job = self._jobs[plan.step_id] = Job(plan)
        return job


def follow(channel: RankChannel, launcher: Launcher, spin_s: float = 0.0) -> None:
    """Do what rank 0 says until it is gone. spin_s: how long to look for more without sleeping after the last work.

    Raises: RankClosed then; and as `FollowedPlans.take`.
    """
    plans, worked_s, has_garbage = FollowedPlans(launcher), 0.0, False
    while True:
        message = channel.receive(max(0.0, worked_s + spin_s - monotonic()))
        if not isinstance(message, Ping):
            plans.take(message)
            worked_s, has_garbage = monotonic(), True
            continue
        channel.send(message)
        if has_garbage and monotonic() - worked_s > _REST_S:  # A collection beside a step would hold up every card.
            gc.collect()
            has_garbage = False
