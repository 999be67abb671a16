"""The events of one streamed response: in OpenAI's order, numbered from 0."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath.api.blocks import Block, Change, Closed, Grown, Opened
from twinpath.api.responses import ChatLogprob
from twinpath.api.responses_api.answers import (
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningText,
    ResponseBody,
    ResponseErrorBody,
    Status,
    item_id_of,
    output_item,
)
from twinpath.api.sse import encode, event, quoted
from twinpath.errors import RequestError

_NO_LOGPROBS: list[ChatLogprob] = []


class ResponseEvents:
    """Renders changes of blocks; `output` collects the finished items."""

    def __init__(self, body: ResponseBody) -> None:
        self.body = body
        self.output: list[OutputItem] = []
        self._number = 0
        self._begun = False
        #: Of the open text block.
        self._logprobs: list[ChatLogprob] = []

    def begin(self) -> bytes:
        """The first two events; nothing when they were sent."""
        if self._begun:
            return b""
        self._begun = True
        return self._named("response.created", response=self.body) + self._named(
            "response.in_progress", response=self.body
        )

    def change(self, change: Change, logprobs: list[ChatLogprob], status: Status = "completed") -> bytes:
        """`logprobs`: of the tokens behind a piece of text. `status`: of an item that closes."""
        block = change.block
        if isinstance(change, Opened):
            return self._opened(block)
        if isinstance(change, Grown):
            return self._grown(block, change.text, logprobs if block.kind == "text" else _NO_LOGPROBS)
        assert isinstance(change, Closed)
        return self._closed(block, status)

    def finish(self) -> bytes:
        """The last event; `body` holds what the turn came to."""
        return self._named(f"response.{self.body.status}", response=self.body)

    def fail(self, error: RequestError) -> bytes:
        """Instead of the last event; the body's output is what was sent whole."""
        self.body.status, self.body.output = "failed", self.output
        self.body.error = ResponseErrorBody(code=error.code or "server_error", message=error.message)
        return self.begin() + self._named("response.failed", response=self.body)

    def _opened(self, block: Block) -> bytes:
        self._logprobs = []
        # Not the block itself: it may have grown since.
        empty = output_item(Block(block.index, block.kind, block.call_id, block.name), self.body.id, "in_progress")
        added = self._named("response.output_item.added", output_index=block.index, item=empty)
        if block.kind == "call":
            return added
        part = OutputText(text="") if isinstance(empty, OutputMessage) else ReasoningText(text="")
        return added + self._in_part("response.content_part.added", empty.id, block, part=part)

    def _grown(self, block: Block, text: str, logprobs: list[ChatLogprob]) -> bytes:
        kind, place, tail = _DELTAS[block.kind]
        item_id = item_id_of(block, self.body.id)
        self._logprobs += logprobs
        if block.kind == "text" and logprobs:
            tail = b',"logprobs":' + encode(logprobs) + b"}"
        data = b'{"type":"%s","sequence_number":%d,"item_id":"%s","output_index":%d%s,"delta":' % (
            kind,
            self._next(),
            item_id.encode(),
            block.index,
            place,
        )
        return event(kind, data + quoted(text) + tail)

    def _closed(self, block: Block, status: Status) -> bytes:
        logprobs, text = self._logprobs, block.text
        item = output_item(block, self.body.id, status, logprobs)
        self.output.append(item)
        if block.kind == "call":
            chunk = self._named(
                "response.function_call_arguments.done",
                item_id=item.id,
                output_index=block.index,
                name=block.name,
                arguments=text,
            )
        elif block.kind == "text":
            chunk = self._in_part("response.output_text.done", item.id, block, text=text, logprobs=logprobs)
            part: Any = OutputText(text=text, logprobs=logprobs)
            chunk += self._in_part("response.content_part.done", item.id, block, part=part)
        else:
            chunk = self._in_part("response.reasoning_text.done", item.id, block, text=text)
            part = ReasoningText(text=text)
            chunk += self._in_part("response.content_part.done", item.id, block, part=part)
        return chunk + self._named("response.output_item.done", output_index=block.index, item=item)

    def _in_part(self, kind: str, item_id: str, block: Block, **fields: Any) -> bytes:
        return self._named(kind, item_id=item_id, output_index=block.index, content_index=0, **fields)

    def _named(self, kind: str, **fields: Any) -> bytes:
        return event(kind.encode(), msgspec.json.encode({"type": kind, "sequence_number": self._next(), **fields}))

    def _next(self) -> int:
        number, self._number = self._number, self._number + 1
        return number


#: Type, place in the item, and end of a delta event.
_DELTAS = {
    "text": (b"response.output_text.delta", b',"content_index":0', b',"logprobs":[]}'),
    "reasoning": (b"response.reasoning_text.delta", b',"content_index":0', b"}"),
    "call": (b"response.function_call_arguments.delta", b"", b"}"),
}
