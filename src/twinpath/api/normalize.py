"""The one normaliser: what clients send -> what the engine takes. Refuses what is not served, fills in, checks."""

from __future__ import annotations

from collections.abc import Mapping
from os import urandom
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from twinpath.api.field_look import FieldLook
from twinpath.api.raw_fields import asks_for
from twinpath.api.schemas import MAX_STOP_CHARS, ChatCompletionRequest, CompletionRequest, SamplingFields
from twinpath.errors import ContextOverflow, InvalidRequest
from twinpath.text import StopSet
from twinpath.types import SamplingParams

#: Fields that would change the output and are not served: name -> values that ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "continue_final_message": (False,),
    "modalities": ([], ["text"]),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
}
_UNSERVED = FieldLook(NEUTRAL_VALUES)
#: Settings that most requests leave to the model.
_SETTINGS = FieldLook(
    {
        "min_tokens",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop_token_ids",
        "ignore_eos",
    }
)
_NO_STOPS = StopSet(())
#: llama.cpp and vLLM say -1 for "no limit"; our own word is 0.
_TOP_K_OFF = -1


def check_prompt_fits(num_prompt: int, window: int, param: str) -> int:
    """Tokens that may follow the prompt, at least 1. `window`: the model's, or the KV pool where that is smaller.

    Raises: ContextOverflow in words that clients recognise, so that they can compact; nothing is ever cut in silence.
    """
    if num_prompt >= window:
        raise ContextOverflow.of(
            f"This model's maximum context length is {window} tokens. However, your prompt has {num_prompt} tokens, "
            "which leaves no room for an answer. Please shorten the prompt.",
            param=param,
            num_tokens=num_prompt,
            window_tokens=window,
        )
    return window - num_prompt


def check_served(fields: ChatCompletionRequest | CompletionRequest) -> None:
    """Refuse known fields that this server does not serve: ignoring them would change the output in silence.

    Raises: InvalidRequest naming the field.
    """
    if not _UNSERVED.finds_any(fields):
        return
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(fields, name, None)
        asked = asks_for(value, neutral) if isinstance(value, Raw) else value is not None and value not in neutral
        if asked:
            raise InvalidRequest(f"'{name}' asks for something this server does not support yet.", param=name)


def stops_of(fields: SamplingFields) -> StopSet:
    """The stop strings, compiled.

    Raises: InvalidRequest when they are very long.
    """
    if not fields.stop:
        return _NO_STOPS
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop
    if (num_chars := sum(map(len, stops))) > MAX_STOP_CHARS:
        raise InvalidRequest(
            f"The strings of 'stop' have {num_chars} characters; at most {MAX_STOP_CHARS} are accepted.", param="stop"
        )
    return StopSet(stops)


def logprobs_of(fields: ChatCompletionRequest) -> int | None:
    """`logprobs` and `top_logprobs` as one number: None is off.

    Raises: InvalidRequest for `top_logprobs` without `logprobs`.
    """
    if not fields.logprobs:
        if fields.top_logprobs is not None:
            raise InvalidRequest("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
        return None
    return int(fields.top_logprobs or 0)


def asked_max_tokens(fields: ChatCompletionRequest | CompletionRequest) -> int | None:
    """The caller's cap: `max_completion_tokens` wins, None is "the rest of the window" (completions: 16)."""
    if isinstance(fields, CompletionRequest):
        return 16 if fields.max_tokens is None else int(fields.max_tokens)
    asked = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    return None if asked is None else int(asked)


class SamplingDoor:
    """Sampling fields to `SamplingParams`: the request's value, else the model's default, else the neutral one."""

    def __init__(self, defaults: Mapping[str, float], vocab_size: int, end_token_ids: tuple[int, ...]) -> None:
        self._defaults = defaults
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        #: What a request gets that says nothing.
        self._usual = self._settings(SamplingFields(), 1)

    def params(
        self,
        fields: ChatCompletionRequest | CompletionRequest,
        *,
        room: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """Valid parameters; `room` (tokens left after the prompt) clamps the caller's cap.

        Raises: InvalidRequest.
        """
        asked = asked_max_tokens(fields)
        max_tokens = room if asked is None or asked > room else asked
        usual = self._usual
        if _SETTINGS.finds_any(fields):
            if asked is not None and fields.min_tokens and fields.min_tokens > asked:
                message = f"'min_tokens' is {int(fields.min_tokens)}, above the maximum of {asked}."
                raise InvalidRequest(message, param="min_tokens")
            usual = self._settings(fields, max_tokens)
        return replace(
            usual,
            max_tokens=max_tokens,
            temperature=usual.temperature if fields.temperature is None else fields.temperature,
            seed=int.from_bytes(urandom(8), "little") >> 1 if fields.seed is None else int(fields.seed),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _settings(self, fields: SamplingFields, max_tokens: int) -> SamplingParams:
        """All but what `params` replaces."""
        top_k = int(self._value(fields, "top_k", 0))
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(int(fields.min_tokens or 0), max_tokens),
            temperature=self._value(fields, "temperature", 1.0),
            top_k=0 if top_k == _TOP_K_OFF else min(top_k, self._vocab_size),
            top_p=self._value(fields, "top_p", 1.0),
            min_p=self._value(fields, "min_p", 0.0),
            repetition_penalty=self._value(fields, "repetition_penalty", 1.0),
            presence_penalty=self._value(fields, "presence_penalty", 0.0),
            frequency_penalty=self._value(fields, "frequency_penalty", 0.0),
            logit_bias=self._logit_bias(fields.logit_bias or {}),
            stop_token_ids=self._stop_token_ids(fields),
        )

    def check_token_ids(self, token_ids: list[Any], param: str) -> list[int]:
        """Ids of this vocabulary, as ints.

        Raises: InvalidRequest naming the first that is not.
        """
        ids = list(map(int, token_ids))
        if ids and (largest := max(ids)) >= self._vocab_size:
            raise InvalidRequest(
                f"'{param}' holds token id {largest}; the vocabulary has {self._vocab_size}.", param=param
            )
        return ids

    def _value(self, fields: SamplingFields, name: str, neutral: float) -> float:
        value = getattr(fields, name)
        return float(self._defaults.get(name, neutral) if value is None else value)

    def _logit_bias(self, bias: Mapping[str, float]) -> dict[int, float]:
        checked: dict[int, float] = {}
        for key, value in bias.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 19):
                raise InvalidRequest("The keys of 'logit_bias' must be token ids.", param="logit_bias")
            if int(key) >= self._vocab_size:
                raise InvalidRequest(
                    f"'logit_bias' names token id {int(key)}; the vocabulary has {self._vocab_size}.",
                    param="logit_bias",
                )
            checked[int(key)] = value
        return checked

    def _stop_token_ids(self, fields: SamplingFields) -> tuple[int, ...]:
        asked = self.check_token_ids(list(fields.stop_token_ids or ()), "stop_token_ids")
        own = () if fields.ignore_eos else self._end_token_ids
        return tuple(dict.fromkeys((*own, *asked)))
