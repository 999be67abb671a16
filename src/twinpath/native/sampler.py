"""ctypes door of the native sampler. Semantics: `twinpath.sampling`; twin: `twinpath.sampling.reference`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_uint64, c_void_p

import numpy as np

from twinpath.errors import EngineError
from twinpath.types import Float32s, Int32s, SamplingParams, TokenLogprob

_STATUS_TEXT = {
    -1: "the model produced non-finite logits",
    -2: "no token is left to sample: every logit is masked",
    -3: "the sampler slot is not bound to a request",
    -4: "the sampler ran out of memory",
}


class _Sampling(ctypes.Structure):
    """`tp_sampling` of csrc/sampler.h."""

    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("seed", c_uint64),
        ("top_k", c_int32),
        ("min_tokens", c_int32),
        ("num_bias", c_int32),
        ("num_stop", c_int32),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_double)),
        ("stop_ids", POINTER(c_int32)),
    )


class NativeSampler:
    """All slots' sampling state. One thread at a time; calls release the GIL.

    Raises: EngineError from `reset`, `append`, `sample` and `token_logprob` when that row or slot cannot go on.
    """

    def __init__(self, library: ctypes.CDLL, vocab_size: int, num_slots: int) -> None:
        self._library = library
        _declare(library)
        self._vocab_size = vocab_size
        self._sampler = library.tp_sampler_create(vocab_size, num_slots)
        if not self._sampler:
            raise EngineError(f"cannot create a sampler for {vocab_size} ids and {num_slots} slots")

    def close(self) -> None:
        """Free the state; later calls must not happen."""
        if self._sampler:
            self._library.tp_sampler_destroy(self._sampler)
            self._sampler = None

    def reset(self, slot: int, params: SamplingParams, history: Int32s, num_prompt: int) -> None:
        """Bind a request to `slot`. history int32 [num_tokens]: prompt then output ids known so far."""
        history = np.ascontiguousarray(history, np.int32)
        status = self._library.tp_sampler_reset(
            self._sampler, slot, byref(_to_struct(params)), history.ctypes.data, len(history), num_prompt
        )
        _raise_for(status)

    def append(self, slot: int, token: int) -> None:
        """Record one more output token of `slot`."""
        _raise_for(self._library.tp_sampler_append(self._sampler, slot, token))

    def sample(self, slot: int, logits: Float32s, position: int, mask: Int32s | None = None) -> int:
        """Draw the token at `position`.

        Shapes: logits float32 [vocab], contiguous and writable: edited during the call, restored before it returns;
            mask int32 [ceil(vocab / 32)], contiguous.
        """
        self._check_row(logits)
        words = None
        if mask is not None:
            assert mask.dtype == np.int32 and mask.shape == (-(-self._vocab_size // 32),) and mask.flags.c_contiguous
            words = mask.ctypes.data
        token = int(self._library.tp_sampler_sample(self._sampler, slot, logits.ctypes.data, position, words))
        _raise_for(token)
        return token

    def token_logprob(self, logits: Float32s, token: int, num_top: int) -> TokenLogprob:
        """Log-softmax of the raw row at `token` and at the `num_top` best ids."""
        self._check_row(logits)
        logprob = c_double()
        num_top = min(num_top, self._vocab_size)
        ids, logprobs = (c_int32 * num_top)(), (c_double * num_top)()
        count = self._library.tp_token_logprob(
            logits.ctypes.data, self._vocab_size, token, num_top, byref(logprob), ids, logprobs
        )
        _raise_for(count)
        return TokenLogprob(token, logprob.value, tuple(zip(ids[:count], logprobs[:count], strict=True)))

    def _check_row(self, logits: Float32s) -> None:
        assert logits.dtype == np.float32 and logits.shape == (self._vocab_size,)
        assert logits.flags.c_contiguous and logits.flags.writeable


def _declare(library: ctypes.CDLL) -> None:
    library.tp_sampler_create.argtypes = (c_int32, c_int32)
    library.tp_sampler_create.restype = c_void_p
    library.tp_sampler_destroy.argtypes = (c_void_p,)
    library.tp_sampler_destroy.restype = None
    library.tp_sampler_reset.argtypes = (c_void_p, c_int32, POINTER(_Sampling), c_void_p, c_int32, c_int32)
    library.tp_sampler_append.argtypes = (c_void_p, c_int32, c_int32)
    library.tp_sampler_sample.argtypes = (c_void_p, c_int32, c_void_p, c_int64, c_void_p)
    library.tp_argmax.argtypes = (c_void_p, c_int32)
    library.tp_token_logprob.argtypes = (
        c_void_p, c_int32, c_int32, c_int32, POINTER(c_double), POINTER(c_int32), POINTER(c_double),
    )  # fmt: skip
    for name in ("tp_sampler_reset", "tp_sampler_append", "tp_sampler_sample", "tp_argmax", "tp_token_logprob"):
        getattr(library, name).restype = c_int32


def _to_struct(params: SamplingParams) -> _Sampling:
    bias_ids = (c_int32 * len(params.logit_bias))(*params.logit_bias)
    biases = (c_double * len(params.logit_bias))(*params.logit_bias.values())
    stop_ids = (c_int32 * len(params.stop_token_ids))(*params.stop_token_ids)
    return _Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed & 0xFFFFFFFFFFFFFFFF,
        top_k=params.top_k,
        min_tokens=params.min_tokens,
        num_bias=len(bias_ids),
        num_stop=len(stop_ids),
        bias_ids=bias_ids,
        biases=biases,
        stop_ids=stop_ids,
    )


def _raise_for(status: int) -> None:
    if status < 0:
        raise EngineError(_STATUS_TEXT.get(status, f"sampler status {status}"))
