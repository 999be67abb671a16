"""Fields of the chat endpoint that Messages and Responses have under another name, or not at all. Ignoring one would
change the answer in silence, so it is declared there and refused, as those APIs themselves do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct, field

from twinpath.api.raw_fields import asks_for
from twinpath.errors import InvalidRequest


def _raw() -> Raw:
    return field(default_factory=Raw)


class MisplacedFields(Struct, kw_only=True):
    """Declared to be refused."""

    n: Raw = _raw()
    stop: Raw = _raw()
    seed: Raw = _raw()
    logit_bias: Raw = _raw()
    presence_penalty: Raw = _raw()
    frequency_penalty: Raw = _raw()
    repetition_penalty: Raw = _raw()
    logprobs: Raw = _raw()
    min_tokens: Raw = _raw()
    ignore_eos: Raw = _raw()
    stop_token_ids: Raw = _raw()
    max_completion_tokens: Raw = _raw()
    response_format: Raw = _raw()
    structured_outputs: Raw = _raw()
    guided_json: Raw = _raw()
    guided_regex: Raw = _raw()
    guided_choice: Raw = _raw()
    guided_grammar: Raw = _raw()
    functions: Raw = _raw()
    function_call: Raw = _raw()


#: Name -> values that ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = dict.fromkeys(MisplacedFields.__struct_fields__, ()) | {
    "n": (1,),
    "stop": ([], ""),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logprobs": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("auto", "none"),
}


def check_misplaced(
    fields: Struct, neutral_values: Mapping[str, tuple[Any, ...]], own_names: Mapping[str, str]
) -> None:
    """`own_names`: what some of them are called in the API that was asked.

    Raises: InvalidRequest naming the field, and its name there.
    """
    for name, neutral in neutral_values.items():
        if asks_for(getattr(fields, name), neutral):
            advice = f"it is '{own_names[name]}' in this API" if name in own_names else "this API has no such field"
            raise InvalidRequest(f"'{name}' is not served here: {advice}.", param=name, code="unsupported_parameter")
