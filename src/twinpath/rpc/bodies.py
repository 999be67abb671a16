"""Protobuf requests -> the JSON bodies of the HTTP door, so that one schema checks both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from twinpath.api.body import decode_body
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest
from twinpath.errors import InvalidRequest

_completion = msgspec.json.Decoder(CompletionRequest)
_chat = msgspec.json.Decoder(ChatCompletionRequest)

#: Above every window, which is the limit then.
_NO_LIMIT = 2**31

#: Fields of `Sampling` that have the same name and value over HTTP.
_SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
)


def completion_fields(request: Any) -> CompletionRequest:
    """A GenerateRequest as the body of /v1/completions. Without `max_tokens` the window is the limit, as in a chat.

    Raises: InvalidRequest.
    """
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("'text' or 'token_ids' is required.", param="prompt")
    body = {"max_tokens": _NO_LIMIT} | _sampling_fields(request.sampling)
    body["prompt"] = request.text if kind == "text" else list(request.token_ids.ids)
    body |= _named(request, "model", "cache_salt")
    if request.HasField("n"):
        body["n"] = request.n
    if request.sampling.HasField("logprobs"):
        body["logprobs"] = request.sampling.logprobs
    return decode_body(msgspec.json.encode(body), _completion)


class Conversation:
    """What one Chat stream has said so far, and the options in force."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._options: dict[str, Raw] = {}

    def chat_fields(self, request: Any) -> ChatCompletionRequest:
        """A ChatRequest with all that came before as the body of /v1/chat/completions.

        Raises: InvalidRequest; nothing is remembered of such a request.
        """
        messages = [*self._messages, *map(_message, request.messages)]
        options = dict(self._options)
        for name in ("tools", "tool_choice", "response_format"):
            if request.HasField(name):
                options[name] = Raw(getattr(request, name).encode())
        body = _sampling_fields(request.sampling) | _named(request, "model", "cache_salt")
        if request.sampling.HasField("logprobs"):
            body |= {"logprobs": True, "top_logprobs": request.sampling.logprobs}
        if request.HasField("parallel_tool_calls"):
            body["parallel_tool_calls"] = request.parallel_tool_calls
        fields = decode_body(msgspec.json.encode({**body, **options, "messages": messages}), _chat)
        self._messages, self._options = messages, options
        return fields

    def answered(self, content: str | None, reasoning: str | None, calls: Iterable[tuple[str, str, str]]) -> None:
        """Keep the answer: its text, its reasoning, and (id, name, arguments) of its calls."""
        message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        tool_calls = [_tool_call(*call) for call in calls]
        self._messages.append(message | ({"tool_calls": tool_calls} if tool_calls else {}))


def _message(message: Any) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [_tool_call(call.id, call.name, call.arguments) for call in message.tool_calls]
    return turn | _named(message, "tool_call_id", "reasoning_content")


def _tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _sampling_fields(sampling: Any) -> dict[str, Any]:
    body = {name: getattr(sampling, name) for name in _SAMPLING if sampling.HasField(name)}
    for name, value in body.items():
        # JSON has no word for these, so they would get lost on the way to the schema.
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"'sampling.{name}' is not a finite number.", param=f"sampling.{name}")
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token_id): _finite(bias) for token_id, bias in sampling.logit_bias.items()}
    return body


def _finite(bias: float) -> float:
    if not math.isfinite(bias):
        raise InvalidRequest("'sampling.logit_bias' holds a bias that is not a finite number.", param="logit_bias")
    return bias


def _named(request: Any, *names: str) -> dict[str, str]:
    """Texts that were given."""
    return {name: getattr(request, name) for name in names if getattr(request, name)}
