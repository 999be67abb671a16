"""The nouns every room shares: requests, events, step plans and step results.

What crosses the process border is a `msgspec.Struct`; what the engine runs is numpy. No torch, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event as Flag
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]

#: Stands in `StepPlan.tokens` for "the token this slot sampled last", when that token is not known to the caller yet.
PENDING_TOKEN = -1


class FinishReason(StrEnum):
    """Why a request ended; the first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. `twinpath.sampling` defines the semantics once; every value here is already valid.

    temperature 0 means greedy; top_k 0, top_p 1, min_p 0, penalties at their neutral value mean "off".
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    #: Always set: the door draws one when the caller gave none. The draw at position p depends on (seed, p) only.
    seed: int = 0
    #: Ids that end the request (end-of-turn ids included unless the caller asked to ignore them).
    stop_token_ids: tuple[int, ...] = ()
    #: None: off. k >= 0: the chosen token's log-probability and the k best.
    logprobs: int | None = None
    #: Same, for every prompt token (`echo` with `logprobs`).
    prompt_logprobs: int | None = None


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A language that the answer must be a word of; `twinpath.grammar` checks, compiles and follows it.

    `source`: a JSON Schema, a regular expression, a JSON list of strings, a Lark grammar, or a JSON `ToolGrammar`.
    """

    kind: Literal["json_schema", "regex", "choice", "lark", "tools"]
    source: str
    #: Free text comes first, up to and with this marker: reasoning. "": none does.
    free_until: str = ""
    #: That text is there only when the answer begins with this one.
    free_from: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A valid request. Text has become token ids; `request_id` is ours and unique."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    #: None: free text.
    grammar: Grammar | None = None
    #: Prefix-cache namespace: requests with different salts never share KV.
    cache_salt: str = ""
    #: Id of a request with the same prompt: this one starts when that one has its first token, and finds the prompt's
    #: KV in the prefix cache. "" when there is none.
    follows: str = ""
    #: Session key from headers or body, already hashed with the API key; "" when none. A hint, never a lock.
    session: str = ""
    #: What the client calls that session, and whose it is (a hash of the API key, "" on an open server).
    session_name: str = ""
    tenant: str = ""
    #: When its last byte came, on the machine's monotonic clock; 0: when the scheduler got it.
    arrival_s: float = 0.0
    #: Service class, for metrics and defaults of the targets.
    class_name: str = ""
    #: First token this long after arrival; None: as soon as possible, but no promise is broken by lateness.
    ttft_target_ms: float | None = None
    #: Each later token at most this long after the one before; None: the server's own budget.
    tpot_target_ms: float | None = None
    #: Share of attention among requests of equal urgency.
    weight: float = 1.0
    #: Static priority, lower first; only the `priority` policy looks at it.
    priority: int = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one chosen token and of the `top` best, from the raw logits (before any setting)."""

    token_id: int
    logprob: float
    #: (token id, logprob), best first; may or may not hold the chosen token.
    top: tuple[tuple[int, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    #: Of the completion's; the text layer counts them.
    reasoning_tokens: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """How a request is served, fixed when it arrived."""

    lane: str
    #: None: no cost model, nothing was promised.
    predicted_ttft_ms: float | None = None


class TokensEvent(msgspec.Struct, frozen=True, tag="tokens", array_like=True):
    """New tokens of one request, in order. A stop token is reported too; the text layer leaves it out."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    #: Only on a request's first event, when asked for: one entry per prompt token but the first.
    prompt_logprobs: list[TokenLogprob] | None = None
    #: Prompt tokens served from the prefix cache (meaningful on the first event).
    cached_tokens: int = 0
    #: Only on a request's first event, when the server has lanes.
    promise: Promise | None = None
    #: Only there: from its arrival until its prefill began.
    waited_ms: float = 0.0


class AdmittedEvent(msgspec.Struct, frozen=True, tag="admitted", array_like=True):
    """Says the promise before the first token, when that is a second away or more."""

    request_id: str
    promise: Promise


class FinishEvent(msgspec.Struct, frozen=True, tag="finish", array_like=True):
    """Terminal: the request ended as asked, at a limit, or because it was cancelled."""

    request_id: str
    reason: FinishReason
    usage: Usage


class ErrorEvent(msgspec.Struct, frozen=True, tag="error", array_like=True):
    """Terminal: this request failed; others are not touched."""

    request_id: str
    message: str
    code: str = "engine_error"
    status: int = 500
    #: When the same request would be taken; None: unknown. 0: never, as far as can be seen.
    retry_after_s: float | None = None


#: A request's life: perhaps one AdmittedEvent, zero or more TokensEvent, then exactly one FinishEvent or ErrorEvent.
Event = AdmittedEvent | TokensEvent | FinishEvent | ErrorEvent


@dataclass(frozen=True, slots=True)
class SlotInit:
    """Binds a request to an engine slot before its first row (or again, when it resumes after preemption).

    `history` holds prompt then output tokens known so far; penalties count from it. From `num_prompt` on it is output.
    """

    slot: int
    sampling: SamplingParams
    history: Int32s
    num_prompt: int


class MaskSource(Protocol):
    """Makes the masks of a plan one by one; `index` counts the masks."""

    def allows(self, index: int, token: int) -> bool:
        """Whether the mask has `token`. False when that is not known without making it."""
        ...

    def fill(self, index: int) -> None:
        """Fill its words."""
        ...


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Which tokens the constrained segments of a plan may sample.

    Shapes: segments int32 [num_masks], ascending; words int32 [num_masks, ceil(vocab / 32)]: bit t & 31 of word t >> 5
        is set when token t may come.
    Invariant: `words` is filled between the plan's `submit` and its `poll`, so that filling overlaps a device's step.
        An engine calls `wait` right before it samples, never in `submit`. For an engine that `asks_for_masks` nothing
        is filled: it has `source` fill the masks that it needs, on the cores that would have computed meanwhile.
    """

    segments: Int32s
    words: Int32s
    ready: Flag = field(default_factory=Flag)
    source: MaskSource | None = None

    def wait(self) -> dict[int, Int32s]:
        """Segment index -> its words, once they are filled."""
        self.ready.wait()
        return dict(zip(self.segments.tolist(), self.words, strict=True))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass over ragged rows: decode and prefill mixed, weights read once.

    Segment i (0 <= i < num_segments) covers `lengths[i]` consecutive tokens of the request in `slots[i]`, the first at
    position `starts[i]`. A slot appears at most once per plan.

    Shapes: slots, starts, lengths int32 [num_segments]; sample bool [num_segments]; tokens int32 [sum(lengths)];
        block_tables int32 [num_segments, max_pages] (page ids in order, padded with -1; pages of the new tokens too);
        residual float32 [sum(lengths), hidden] or None.
    Layers: the half-open range [layer_begin, layer_end) runs. A range that starts after 0 reads `residual`, one that
        ends before num_layers writes it (caller-owned; see `EngineInfo.keeps_residual`); embedding only when
        layer_begin == 0, sampling only when layer_end == num_layers. Slices of one chunk share one residual and may be
        outstanding together; after an interrupt its content is undefined and the chunk starts again at layer 0.
    Invariant: plan n + 1 may be submitted before plan n's result is known; a decode segment then carries PENDING_TOKEN.
    """

    step_id: int
    slots: Int32s
    starts: Int32s
    lengths: Int32s
    sample: NDArray[np.bool_]
    tokens: Int32s
    block_tables: Int32s
    layer_begin: int
    layer_end: int
    residual: Float32s | None = None
    inits: tuple[SlotInit, ...] = ()
    #: Slots whose state the engine drops once this plan has run.
    releases: tuple[int, ...] = ()
    #: A plan of single rows that all sample may run up to so many times, each time on the tokens just sampled: its
    #: result then has the same number of tokens for every segment. The block tables reach far enough.
    repeat: int = 1
    #: None: no segment is constrained.
    masks: TokenMasks | None = None
    #: A plan of all layers with a residual may be left after so long by an engine that `pauses`; its result says where.
    #: The same rows and residual (its name) are then planned again with `resume`, until they are through.
    budget_ms: float | None = None
    resume: bool = False
    #: The residual of a paused plan that an engine which `goes_on` runs further on a part of its cores, from now until
    #: the next plan that does not say so; only what it samples is left for its own next plan.
    beside: Float32s | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one plan produced.

    Shapes: counts int32 [num_segments], tokens int32 [sum(counts)]: the sampled tokens per segment, none where the plan
        did not ask or the segment failed. An engine with depth > 1 returns at most one token per segment.
    """

    step_id: int
    counts: Int32s
    tokens: Int32s
    #: Per sampled token when the slot asked for log-probabilities: segment index -> one entry per token.
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    #: segment index -> one entry per row whose next token is known (the prompt's), in order.
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    #: segment index -> reason: only that request fails (non-finite logits, for one).
    failures: dict[int, str] = field(default_factory=dict)
    #: The step was interrupted between layers; nothing of it counts and it may be planned again.
    interrupted: bool = False
    elapsed_ms: float = 0.0
    #: The plan's time was over in this layer; it goes on with `StepPlan.resume`.
    paused_layer: int | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a scheduler must know of an engine."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    max_slots: int
    #: Most tokens one plan may carry.
    max_step_tokens: int
    #: Plans that may be outstanding.
    depth: int
    device: Literal["cpu", "cuda"] = "cpu"
    description: str = ""
    #: The residual of a chunk that runs slice by slice stays on the device: the plan's array is its name, not its home.
    keeps_residual: bool = False
    #: It computes on the cores that make masks: see `TokenMasks.source`.
    asks_for_masks: bool = False
    #: It can leave a plan anywhere when its time is over: see `StepPlan.budget_ms`.
    pauses: bool = False
    #: And go on with it beside another plan: see `StepPlan.beside`.
    goes_on: bool = False
    #: Rows that steps are padded up to, ascending; none: steps take what their rows take.
    step_sizes: tuple[int, ...] = ()
    #: Chunks of a power of two times so many rows, at a multiple of it, attend faster.
    chunk_grain: int = 1
