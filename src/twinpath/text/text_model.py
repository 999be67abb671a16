"""A model's text side as one object: what the API needs to turn requests into ids and ids into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from twinpath.errors import InvalidRequest
from twinpath.text.answer import AnswerFormat, answer_format
from twinpath.text.chat_template import ChatTemplate
from twinpath.text.control_text import ControlTextGuard
from twinpath.text.detokenizer import Detokenizer
from twinpath.text.length import check_can_fit, check_count
from twinpath.text.messages import normalize
from twinpath.text.template_traits import TemplateTraits
from twinpath.text.tokenizer import Segment, Tokenizer

#: More than a reasoning mark and blanks after it are, spelled character by character.
_END_TOKENS = 32
#: What templates get from the server and nobody else.
_OWN_NAMES = frozenset({"messages", "tools", "range"})


@dataclass(frozen=True)
class TextModel:
    """Tokeniser, chat template and the defaults that come with them. Every method may be called from any thread."""

    tokenizer: Tokenizer
    #: None: the model knows no chat.
    template: ChatTemplate | None
    #: Ids that end a turn or a text.
    stop_token_ids: tuple[int, ...]
    #: The model's own window, in tokens.
    max_model_len: int
    #: From generation_config, then the alias: temperature, top_k, top_p, ... as the model's makers advise.
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    #: How the model writes reasoning and tool calls.
    answers: AnswerFormat = field(default_factory=lambda: answer_format(None))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation. Control tokens come from the template only, never from a caller's string.

        Raises: InvalidRequest with the template's text when it refuses the messages, or when there is no template;
        ContextOverflow when they cannot fit whatever their tokens are.
        """
        # Templates show what messages say: no use rendering what is too long already.
        contents = [content for message in messages if isinstance(content := message.get("content"), str)]
        check_count(contents, self.tokenizer.encode, self.max_model_len, "messages")
        segments = self._render(messages, tools, add_generation_prompt, template_kwargs)
        check_can_fit(sum(len(segment.text) for segment in segments), self.max_model_len, "messages")
        return self.tokenizer.encode_segments(segments)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The same prompt as text, for people."""
        segments = self._render(messages, tools, add_generation_prompt, template_kwargs)
        return "".join(segment.text for segment in segments)

    def detokenizer(self, *, continuation: bool = False) -> Detokenizer:
        """A decoder for one answer. `continuation`: it goes on where a raw prompt ended, so a leading space is kept."""
        return self.tokenizer.detokenizer(continuation=continuation)

    def answer_detokenizer(self) -> Detokenizer:
        """A decoder for the text that an `AnswerParser` reads: control tokens that mark something there are shown."""
        return self.tokenizer.detokenizer(shown_ids=self._mark_ids)

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the template has begun the reasoning that the model is to continue."""
        reasoning = self.answers.reasoning
        if reasoning is None:
            return False
        end = self.tokenizer.decode(prompt_ids[-_END_TOKENS:], skip_special=False)
        return end.rstrip().endswith(reasoning.begin)

    @cached_property
    def _mark_ids(self) -> frozenset[int]:
        special = self.tokenizer.special_tokens
        return frozenset(special[mark] for mark in self.answers.marks if mark in special)

    @cached_property
    def _guard(self) -> ControlTextGuard:
        return ControlTextGuard(self.tokenizer)

    @cached_property
    def _traits(self) -> TemplateTraits | None:
        return None if self.template is None else TemplateTraits(self.template)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None,
    ) -> list[Segment]:
        template, traits = self.template, self._traits
        if template is None or traits is None:
            reason = "this model has no chat template; use /v1/completions, or start the server with --chat-template"
            raise InvalidRequest(reason, param="messages")
        if taken := next((name for name in template_kwargs or () if name in _OWN_NAMES), None):
            raise InvalidRequest(f"'chat_template_kwargs' cannot set '{taken}'", param="chat_template_kwargs")
        messages = normalize(messages, traits, tools=tools or (), tool_format=self.answers.tools)
        shown_tools = list(tools) if tools and traits.renders_tools else None
        given = (messages, shown_tools, dict(template_kwargs or {}))
        try:
            mark = self._guard.choose_mark(*given)
            safe_messages, safe_tools, variables = (self._guard.protect(value, mark) for value in given)
        except RecursionError:
            raise InvalidRequest("the messages are nested too deeply", param="messages") from None
        variables = {"add_generation_prompt": add_generation_prompt} | variables | {"tools": safe_tools}
        return self._guard.segments(template.render(safe_messages, **variables), mark)
