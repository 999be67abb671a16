"""What the door needs from the rooms below it, as Protocols: the text side of a model and a replica that generates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from twinpath.ipc.messages import Gauges, PinnedPrompt, Ready, SessionCard, TemplateCard
from twinpath.text.answer import AnswerFormat
from twinpath.text.tokenizer import Segment
from twinpath.types import Event, Request


class Detokenizer(Protocol):
    """Token ids to text, one stream. Bytes of a character that is not complete yet are held back."""

    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str:
        """What is left; an incomplete character is dropped."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back, as `twinpath.text` does it. Thread safe."""

    @property
    def vocab_size(self) -> int: ...

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw completion prompt: control tokens are recognised, BOS is added when the model wants it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens left out."""
        ...

    def split_special(self, text: str) -> list[Segment]:
        """The text cut at the control tokens it spells."""
        ...

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def detokenizer(self, *, skip_special: bool = True, continuation: bool = False) -> Detokenizer:
        """`continuation`: the text goes on after a raw prompt, so a leading space is meant."""
        ...


class TextModel(Protocol):
    """The text side of one model. Thread safe: long prompts are encoded in a worker thread."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def default_sampling(self) -> Mapping[str, float]: ...

    @property
    def answers(self) -> AnswerFormat:
        """How the model writes reasoning and tool calls."""
        ...

    def answer_detokenizer(self) -> Detokenizer:
        """For text that an answer's parser reads: control tokens that mark something there are shown."""
        ...

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends inside the model's reasoning."""
        ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, generation prompt added. `tools`: in the shape of OpenAI's chat API.

        Raises: InvalidRequest with the template's own words when it refuses the conversation.
        """
        ...


class Holdings(Protocol):
    """Sessions and pinned templates of an engine. All raise RequestError: refused (409), or no engine there (503)."""

    @property
    def num_computing(self) -> int:
        """Templates that an engine which just started has yet to compute."""
        ...

    async def sessions(self, tenant: str, session: str | None = None) -> list[SessionCard]: ...

    async def end_session(self, session: str) -> SessionCard | None: ...

    async def templates(self) -> list[TemplateCard]: ...

    async def pin(self, prompt: PinnedPrompt) -> TemplateCard: ...

    async def unpin(self, name: str) -> TemplateCard | None: ...


class Replica(Protocol):
    """One engine as the door sees it; `twinpath.gateway` has the real one."""

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining, failed or stopped."""
        ...

    @property
    def info(self) -> Ready | None:
        """The engine's limits; None until it was ready once."""
        ...

    @property
    def holdings(self) -> Holdings: ...

    @property
    def gauges(self) -> Gauges:
        """The latest heartbeat's."""
        ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def seconds_since_token(self) -> float | None:
        """None when nothing runs; else seconds since the last token, or since the oldest request came."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Event]: ...
