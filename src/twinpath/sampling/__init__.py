"""Sampling: logits -> one token, defined once for every engine.

Owns the semantics below and their plain twin, `reference.py` (numpy, float64). `native/csrc/sampler.cpp` is the fast
implementation; one conformance suite runs both and expects the same token, always, and the same log-probabilities.
May import: types, errors. Must not import torch, engines or the scheduler.

A draw takes a row of float32 logits [vocab], the request's `SamplingParams`, `history` (prompt then output ids before
the drawn token), `num_prompt`, and `position`, the index of the drawn token in the sequence (so `len(history) ==
position`; history may be left empty when no penalty is on). Ids outside the vocabulary, wherever they occur, name no
token and are ignored.

A row may come with a mask (`TokenMasks`), the tokens that its grammar allows.

Failures. A NaN or +inf logit, masked or not, or a row with nothing above -inf (before or after the masks), fails that
row only (`EngineError`). -inf is allowed and means "never".

Adjusted logits. Each setting computes in float64; its result is rounded to float32, finite values staying finite
(clamped to +-FLT_MAX):

1. `logit_bias` is added.
2. `repetition_penalty` r, for ids in the history: positive logits are divided by r, others multiplied.
3. `frequency_penalty` f and `presence_penalty` q, for ids seen c > 0 times in the output: x - f * c - q.
4. Without a mask, `min_tokens`: while position - num_prompt < min_tokens, the stop ids become -inf. With one, ids
   whose bit is 0 become -inf: the mask says itself when the end may come.

Greedy. A temperature below `GREEDY_BELOW` (0 included) takes the largest adjusted logit, ties to the lowest id; the
settings below do not apply.

Weights. Otherwise, with m the largest adjusted logit, id i weighs w_i = rint(2**34 * exp((x_i - m) * (1 /
temperature))), an integer: sums are exact and independent of their order, so every engine agrees on every border. An
id 2**-35 as likely as the best weighs 0 and is never drawn. The exponential itself is defined operation by operation
in `reference.fixed_exp`.

Rank is by adjusted logit, ties to the lower id. What remains after each:

5. `top_k` k > 0: the first k by rank.
6. `top_p` p < 1: the shortest run by rank whose weight reaches ceil(p * total), at least 1.
7. `min_p`: those with w_i >= min_p * 2**34, that is min_p times the best id's probability.

The draw. r is a 64-bit number from Philox4x32-10 with key `seed` and counter `position` (its first two words, low
word first), so u = r / 2**64 is in [0, 1). Walking what remains in ascending id order, the first id whose running
weight exceeds floor(u * total) is drawn. Nothing else enters: a request that resumes elsewhere, in any batch, draws
the same.

Log-probabilities are log-softmax of the raw logits, before any setting. The `top` list ranks as above, best first,
and leaves out ids at -inf, so every reported number is finite.
"""

from twinpath.sampling.reference import GREEDY_BELOW, philox_4x32, sample, token_logprob

__all__ = ["GREEDY_BELOW", "philox_4x32", "sample", "token_logprob"]
