"""Text to token ids. Short prompts are encoded in place, long ones in a worker thread."""

from __future__ import annotations

from typing import Any

from twinpath.api.conversation import num_chars, to_turns
from twinpath.api.normalize import SamplingDoor
from twinpath.api.offload import Offload
from twinpath.api.ports import TextModel
from twinpath.api.schemas import MAX_PROMPTS, ChatCompletionRequest, CompletionRequest
from twinpath.errors import InvalidRequest


class PromptEncoder:
    """Encodes chat conversations and completion prompts."""

    def __init__(self, text: TextModel, sampling: SamplingDoor, offload: Offload) -> None:
        self._text = text
        self._sampling = sampling
        self._offload = offload

    async def chat(self, fields: ChatCompletionRequest) -> list[int]:
        """Token ids of the rendered conversation.

        Raises: InvalidRequest with the template's own words when it refuses.
        """
        turns = to_turns(fields.messages)
        kwargs = fields.chat_template_kwargs
        return await self._offload.run(num_chars(turns), lambda: self._text.encode_chat(turns, template_kwargs=kwargs))

    async def completion(self, fields: CompletionRequest) -> list[list[int]]:
        """Token ids of every prompt of the call, in order.

        Raises: InvalidRequest.
        """
        prompts = _split_prompts(fields.prompt)
        size = sum(len(prompt) for prompt in prompts)
        encoded = await self._offload.run(size, lambda: [self._encode_prompt(prompt) for prompt in prompts])
        if any(not ids for ids in encoded):
            raise InvalidRequest("'prompt' is empty.", param="prompt")
        return encoded

    def _encode_prompt(self, prompt: str | list[Any]) -> list[int]:
        if isinstance(prompt, str):
            return self._text.tokenizer.encode_prompt(prompt)
        return self._sampling.check_token_ids(prompt, "prompt")


def _split_prompts(prompt: str | list[Any]) -> list[str | list[Any]]:
    """A string, strings, ids, or lists of ids: one kind per call."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int | float) for item in prompt):
        return [prompt]
    if not (all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt)):
        raise InvalidRequest(
            "'prompt' must be a string, strings, token ids, or lists of token ids; not a mixture.", param="prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"'prompt' holds {len(prompt)} prompts; at most {MAX_PROMPTS} are accepted.", param="prompt"
        )
    return prompt
