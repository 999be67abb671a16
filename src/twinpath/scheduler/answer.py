"""From sampled tokens to what a request is told."""

from __future__ import annotations

from twinpath.scheduler.sequence import Sequence
from twinpath.types import ErrorEvent, FinishReason, Request, TokenLogprob, TokensEvent


def tell(
    sequence: Sequence, new_tokens: list[int], logprobs: list[TokenLogprob] | None
) -> tuple[TokensEvent, FinishReason | None]:
    """Append what counts of `new_tokens`; the event, and why the request ends here if it does."""
    reason = None
    if (
        sequence.constraint is not None
        or sequence.num_known - sequence.num_prompt + len(new_tokens) >= sequence.max_outputs
        or not sequence.stop_ids.isdisjoint(new_tokens)
    ):
        new_tokens, reason = _cut(sequence, new_tokens)
        if logprobs is not None:
            logprobs = logprobs[: len(new_tokens)]
    sequence.append(new_tokens)
    if sequence.started:
        return TokensEvent(sequence.request_id, new_tokens, logprobs), reason
    event = TokensEvent(
        sequence.request_id,
        new_tokens,
        logprobs,
        sequence.prompt_logprobs,
        sequence.cached_tokens,
        sequence.promise,
        max(sequence.waited_s or 0.0, 0.0) * 1e3,
    )
    sequence.started = True
    sequence.prompt_logprobs = None
    return event, reason


def refuse(request: Request, window_tokens: int) -> ErrorEvent:
    """A prompt that cannot run."""
    num_prompt = len(request.prompt_ids)
    if not num_prompt:
        return ErrorEvent(request.request_id, "the prompt is empty", "invalid_prompt", 400)
    return ErrorEvent(
        request.request_id,
        f"the prompt has {num_prompt} tokens; at most {window_tokens - 1} fit beside one output token",
        "context_length_exceeded",
        400,
    )


def shed(sequence: Sequence, predicted_ms: float, retry_after_s: float) -> ErrorEvent:
    """A request whose target for the first token cannot be met. `retry_after_s` 0: not even alone on the machine."""
    target_ms = sequence.ttft_target_ms or 0.0
    message = f"The first token would come after {predicted_ms:.0f} ms, and the target is {target_ms:.0f} ms."
    return ErrorEvent(sequence.request_id, message, "deadline_unreachable", 429, retry_after_s)


def _cut(sequence: Sequence, new_tokens: list[int]) -> tuple[list[int], FinishReason | None]:
    """`new_tokens` up to the first that ends the request, and why it ends there."""
    num_outputs, sampling = sequence.num_outputs, sequence.sampling
    for index, token in enumerate(new_tokens, 1):
        if token in sequence.stop_ids and num_outputs + index > sampling.min_tokens:
            return new_tokens[:index], FinishReason.STOP
        if num_outputs + index >= sequence.max_outputs:
            return new_tokens[:index], _grammar_end(sequence) or FinishReason.LENGTH
    return new_tokens, _grammar_end(sequence) or (None if sequence.max_outputs else FinishReason.LENGTH)


def _grammar_end(sequence: Sequence) -> FinishReason | None:
    """How an answer ends that is complete under its grammar: as asked, or closed out because its tokens ran out."""
    constraint = sequence.constraint
    if constraint is None or not constraint.finished:
        return None
    return FinishReason.LENGTH if constraint.closed_out else FinishReason.STOP
