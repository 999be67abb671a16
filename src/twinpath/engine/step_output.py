"""What a running step collects, and the StepResult it becomes: the same for every engine that samples on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from twinpath.types import StepPlan, StepResult, TokenLogprob


@dataclass(slots=True)
class StepOutput:
    """What a step has produced so far, by segment index."""

    tokens: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def result(self, plan: StepPlan, elapsed_ms: float = 0.0) -> StepResult:
        """A failed segment has no prompt log-probabilities."""
        sampled = sorted(self.tokens)
        counts = [0] * len(plan.slots)
        for index in sampled:
            counts[index] = 1
        for index in self.failures:
            self.prompt_logprobs.pop(index, None)
        return StepResult(
            step_id=plan.step_id,
            counts=np.array(counts, np.int32),
            tokens=np.array([self.tokens[i] for i in sampled], np.int32),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            failures=self.failures,
            elapsed_ms=elapsed_ms,
        )


def paused_result(plan: StepPlan, layer: int, elapsed_ms: float) -> StepResult:
    """Of a plan that ran out of time."""
    counts, tokens = np.zeros(len(plan.slots), np.int32), np.zeros(0, np.int32)
    return StepResult(plan.step_id, counts, tokens, elapsed_ms=elapsed_ms, paused_layer=layer)


def interrupted_result(plan: StepPlan, elapsed_ms: float = 0.0) -> StepResult:
    """Of a plan that was left between layers: nothing of it counts."""
    counts, tokens = np.zeros(len(plan.slots), np.int32), np.zeros(0, np.int32)
    return StepResult(plan.step_id, counts, tokens, interrupted=True, elapsed_ms=elapsed_ms)
