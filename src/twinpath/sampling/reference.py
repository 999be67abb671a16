"""The plain twin of the sampler: numpy, one row at a time, written to be read. The room's docstring has the rules."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from twinpath.errors import EngineError
from twinpath.types import Float32s, Int32s, SamplingParams, TokenLogprob

Float64s = NDArray[np.float64]

#: Temperatures below this mean greedy: 1 / temperature stays finite, and the draw would be the argmax anyway.
GREEDY_BELOW = 1e-6

#: Weights count in units of 2**-34 of the best token's, so totals of up to 2**19 ids are exact in float64.
WEIGHT_BITS = 34

_LARGEST = float(np.finfo(np.float32).max)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_EXP_DEGREE = 10


def sample(
    logits: Float32s,
    params: SamplingParams,
    history: Int32s,
    num_prompt: int,
    position: int,
    mask: Int32s | None = None,
) -> tuple[int, TokenLogprob | None]:
    """Draw the token at `position`; with it its log-probability when `params.logprobs` asks.

    Shapes: logits float32 [vocab]; history int32 [position], or empty when no penalty is on; mask int32
        [ceil(vocab / 32)] as in `TokenMasks`.
    Raises: EngineError when the row cannot be sampled.
    """
    _check_row(logits)
    adjusted = _adjust(logits, params, history, num_prompt)
    if mask is not None:
        bits = np.unpackbits(mask.astype("<i4").view(np.uint8), count=len(logits), bitorder="little")
        adjusted[bits == 0] = -math.inf
    elif position - num_prompt < params.min_tokens:
        adjusted[[token for token in params.stop_token_ids if 0 <= token < len(logits)]] = -math.inf
    best = float(adjusted.max())
    if best == -math.inf:
        raise EngineError("no token is left to sample: every logit is masked")
    if params.temperature < GREEDY_BELOW:
        token = int(adjusted.argmax())
    else:
        weights = _weigh(adjusted, best, params.temperature)
        kept = _keep(adjusted, weights, params)
        token = _draw(weights, kept, params.seed, position)
    if params.logprobs is None:
        return token, None
    return token, token_logprob(logits, token, params.logprobs)


def token_logprob(logits: Float32s, token: int, num_top: int) -> TokenLogprob:
    """Log-softmax of raw `logits` at `token`, which is not at -inf, and at the `num_top` best ids.

    Raises: EngineError when the row holds NaN or +inf.
    """
    _check_row(logits)
    best = int(logits.argmax())
    distances = logits.astype(np.float64) - float(logits[best])
    others = np.exp(distances)
    others[best] = 0.0
    log_total = math.log1p(float(others.sum()))
    ranked = _rank(logits)[:num_top]
    top = tuple((int(i), float(distances[i]) - log_total) for i in ranked if logits[i] > -math.inf)
    return TokenLogprob(token, float(distances[token]) - log_total, top)


def fixed_exp(exponents: Float64s) -> Float64s:
    """rint(2**34 * exp(x)) for x <= 0, the same bits on every machine: no fused multiply-add, no libm.

    x = k ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2), exp(r) by its Taylor polynomial in Horner
    order (degree 10: relative error 2**-42, below the 2**-35 that the rounding keeps).
    """
    clamped = np.maximum(exponents, -64.0)
    powers = np.rint(clamped * _LOG2_E)
    remainder = (clamped - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.full_like(remainder, 1.0 / math.factorial(_EXP_DEGREE))
    for degree in range(_EXP_DEGREE - 1, -1, -1):
        series = series * remainder + 1.0 / math.factorial(degree)
    weights: Float64s = np.rint(np.ldexp(series, powers.astype(np.int32) + WEIGHT_BITS))
    return weights


def philox_4x32(key: int, counter: int) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32: four 32-bit words from a 64-bit key and a 128-bit counter.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = ((counter >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96))
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _check_row(logits: Float32s) -> None:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise EngineError("the model produced non-finite logits")
    if np.isneginf(logits).all():
        raise EngineError("no token is left to sample: every logit is masked")


def _rank(logits: Float32s) -> NDArray[np.intp]:
    return np.argsort(-logits, kind="stable")


def _adjust(logits: Float32s, params: SamplingParams, history: Int32s, num_prompt: int) -> Float32s:
    adjusted = logits.astype(np.float32, copy=True)
    vocab_size = len(adjusted)
    for token, bias in params.logit_bias.items():
        if 0 <= token < vocab_size:
            adjusted[token] = _to_float32(float(adjusted[token]) + bias)
    valid = (history >= 0) & (history < vocab_size)
    for token in np.unique(history[valid]).tolist():
        logit = float(adjusted[token])
        penalty = params.repetition_penalty
        adjusted[token] = _to_float32(logit / penalty if logit > 0 else logit * penalty)
    ids, counts = np.unique(history[num_prompt:][valid[num_prompt:]], return_counts=True)
    for token, count in zip(ids.tolist(), counts.tolist(), strict=True):
        logit = float(adjusted[token])
        adjusted[token] = _to_float32(logit - params.frequency_penalty * count - params.presence_penalty)
    return adjusted


def _to_float32(value: float) -> float:
    return value if value == -math.inf else min(max(value, -_LARGEST), _LARGEST)


def _weigh(adjusted: Float32s, best: float, temperature: float) -> Float64s:
    return fixed_exp((adjusted.astype(np.float64) - best) * (1.0 / temperature))


def _keep(adjusted: Float32s, weights: Float64s, params: SamplingParams) -> NDArray[np.intp]:
    """Ids that survive top_k, top_p and min_p, in rank order."""
    ranked = _rank(adjusted)
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        running = weights[ranked].cumsum()
        needed = max(1.0, math.ceil(params.top_p * float(running[-1])))
        ranked = ranked[: int(np.searchsorted(running, needed, side="left")) + 1]
    return ranked[weights[ranked] >= params.min_p * float(1 << WEIGHT_BITS)]


def _draw(weights: Float64s, kept: NDArray[np.intp], seed: int, position: int) -> int:
    ids = np.sort(kept)
    running = weights[ids].cumsum()
    low, high, _, _ = philox_4x32(seed, position)
    target = ((high << 32 | low) * int(running[-1])) >> 64
    return int(ids[np.searchsorted(running, float(target), side="right")])
