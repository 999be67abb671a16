"""Text to token ids. Short prompts are encoded in place, long ones in a worker thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinpath.api.conversation import to_turns
from twinpath.api.normalize import SamplingDoor
from twinpath.api.offload import INLINE_SIZE, Offload
from twinpath.api.ports import TextModel
from twinpath.api.raw_fields import template_kwargs_in
from twinpath.api.schemas import MAX_PROMPTS, ChatCompletionRequest, CompletionRequest
from twinpath.errors import InvalidRequest
from twinpath.text import check_count


class PromptEncoder:
    """Encodes chat conversations and completion prompts."""

    def __init__(self, text: TextModel, sampling: SamplingDoor, offload: Offload) -> None:
        self._text = text
        self._sampling = sampling
        self._offload = offload

    async def chat(
        self, fields: ChatCompletionRequest, num_bytes: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the rendered conversation. `num_bytes`: the body's size, since long text may be anywhere in it
        (contents, call arguments, reasoning, template arguments, tools). `tools`: those that the model is to hear of.

        Raises: InvalidRequest with the template's own words when it refuses.
        """
        kwargs = _reasoning_kwargs(fields) | (template_kwargs_in(fields.chat_template_kwargs) or {})
        return await self._offload.run(
            num_bytes, lambda: self._text.encode_chat(to_turns(fields.messages), tools=tools, template_kwargs=kwargs)
        )

    async def completion(self, fields: CompletionRequest, num_bytes: int) -> list[list[int]]:
        """Token ids of every prompt of the call, in order; `num_bytes` is the body's size.

        Raises: InvalidRequest.
        """
        if num_bytes <= INLINE_SIZE:
            encoded = self._encode_prompts(fields.prompt)
        else:
            encoded = await self._offload.run(num_bytes, lambda: self._encode_prompts(fields.prompt))
        if [] in encoded:
            raise InvalidRequest("'prompt' is empty.", param="prompt")
        return encoded

    def _encode_prompts(self, prompt: str | list[Any]) -> list[list[int]]:
        return [self._encode_prompt(one) for one in _split_prompts(prompt)]

    def _encode_prompt(self, prompt: str | list[Any]) -> list[int]:
        if isinstance(prompt, str):
            check_count([prompt], self._text.tokenizer.encode_prompt, self._text.max_model_len, "prompt")
            return self._text.tokenizer.encode_prompt(prompt)
        return self._sampling.check_token_ids(prompt, "prompt")


def _reasoning_kwargs(fields: ChatCompletionRequest) -> dict[str, Any]:
    """What templates know these fields as: `enable_thinking` (Qwen 3, SmolLM3, GLM), `thinking` (DeepSeek V3.1, Kimi,
    Granite), `reasoning_effort` (gpt-oss)."""
    kwargs: dict[str, Any] = {}
    effort, thinking = fields.reasoning_effort, fields.thinking
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    if thinking is not None and thinking.type != "adaptive":
        kwargs["enable_thinking"] = kwargs["thinking"] = thinking.type == "enabled"
    elif effort == "none":
        kwargs["enable_thinking"] = kwargs["thinking"] = False
    return kwargs


def _split_prompts(prompt: str | list[Any]) -> list[str | list[Any]]:
    """A string, strings, ids, or lists of ids: one kind per call."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if kinds <= {int, float}:
        return [prompt]
    if kinds not in ({str}, {list}):
        raise InvalidRequest(
            "'prompt' must be a string, strings, token ids, or lists of token ids; not a mixture.", param="prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"'prompt' holds {len(prompt)} prompts; at most {MAX_PROMPTS} are accepted.", param="prompt"
        )
    return prompt
