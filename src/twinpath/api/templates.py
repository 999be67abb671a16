"""Pinned templates over HTTP, and what of a conversation's beginning can be kept."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, field
from starlette.types import Receive, Scope, Send

from twinpath.api.conversation import to_turns
from twinpath.api.exchange import Exchange
from twinpath.api.generation import Door
from twinpath.api.plain_routes import respond
from twinpath.api.ports import TextModel
from twinpath.api.raw_fields import template_kwargs_in
from twinpath.api.schemas import MAX_MESSAGES, ChatCompletionRequest, ChatMessage
from twinpath.api.tool_fields import tool_use
from twinpath.errors import InvalidRequest, RequestError, RouteNotFound
from twinpath.ipc.messages import PinnedPrompt, TemplateCard

Name = Annotated[str, Meta(min_length=1, max_length=128)]
#: What may follow a beginning. The tokens that all of these have in common do not depend on it.
_SEQUELS = ("a", "1", "\n\n-", "\N{HIRAGANA LETTER A}")


class TemplateRequest(Struct, kw_only=True):
    """Body of POST /v1/twinpath/templates, and content of a `--pin-template` file (where the name may be missing)."""

    name: Name | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: Raw = field(default_factory=Raw)
    chat_template_kwargs: Raw = field(default_factory=Raw)
    #: For requests of every API key; else only of the key that posted it.
    shared: bool = False


class TemplateBody(Struct, kw_only=True):
    """One template, as answered."""

    name: str
    object: str = "twinpath.template"
    tokens: int
    #: In whole KV pages; the rest is computed with each request.
    pinned_tokens: int
    pages: int
    shared: bool
    ready: bool
    hits: int
    deleted: bool = False

    @classmethod
    def of(cls, card: TemplateCard, *, deleted: bool = False) -> TemplateBody:
        return cls(
            name=card.name,
            tokens=card.num_tokens,
            pinned_tokens=card.num_pinned_tokens,
            pages=card.num_pages,
            shared=card.shared,
            ready=card.ready,
            hits=card.num_hits,
            deleted=deleted,
        )


class TemplateList(Struct, kw_only=True):
    object: str = "list"
    data: list[TemplateBody]


decoder = msgspec.json.Decoder(TemplateRequest)


def pinned_prompt(fields: TemplateRequest, text: TextModel, name: str, cache_salt: str) -> PinnedPrompt:
    """The tokens that every conversation with this beginning starts with.

    Raises: InvalidRequest.
    """
    request = ChatCompletionRequest(messages=fields.messages, tools=fields.tools)
    use = tool_use(request)
    tools, kwargs = use.prompt_tools() if use else (), template_kwargs_in(fields.chat_template_kwargs)
    turns = to_turns(fields.messages)
    role = "assistant" if turns[-1]["role"] == "user" else "user"
    prompts = [
        text.encode_chat([*turns, {"role": role, "content": sequel}], tools=tools, template_kwargs=kwargs)
        for sequel in _SEQUELS
    ]
    num_common = next((i for i, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1), len(prompts[0]))
    return PinnedPrompt(name, prompts[0][:num_common], cache_salt, fields.shared)


class Templates:
    """POST and GET /v1/twinpath/templates, GET and DELETE /v1/twinpath/templates/{name}: for administrators."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_admin(scope)
        if scope["method"] == "POST":
            await self._pin(scope, receive, send)
            return
        cards = await self._door.replica.holdings.templates()
        await _answer(send, TemplateList(data=[TemplateBody.of(card) for card in cards]))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_admin(scope)
        name, holdings = scope["path_params"]["name"], self._door.replica.holdings
        deleted = scope["method"] == "DELETE"
        if deleted:
            card = await holdings.unpin(name)
        else:
            card = next((one for one in await holdings.templates() if one.name == name), None)
        if card is None:
            raise RouteNotFound("There is no such template; see /v1/twinpath/templates.")
        await _answer(send, TemplateBody.of(card, deleted=deleted))

    async def _pin(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, exchange = self._door, Exchange.of(scope)
        fields = await door.decode(scope, receive, decoder)
        if fields.name is None:
            raise InvalidRequest("'name' is required.", param="name")
        name, salt = fields.name, exchange.caller.cache_salt(None)
        # Rendered once for each sequel.
        num_bytes = len(_SEQUELS) * exchange.num_body_bytes
        prompt = await door.offload.run(num_bytes, lambda: pinned_prompt(fields, door.text, name, salt))
        await _answer(send, TemplateBody.of(await door.replica.holdings.pin(prompt)))


def _check_admin(scope: Scope) -> None:
    """Raises: RequestError 403."""
    if not Exchange.of(scope).caller.is_admin:
        error = RequestError(
            "Templates are managed with an administrator's key (see --admin-key).",
            status=403,
            code="permission_denied",
        )
        error.type = "permission_error"
        raise error


async def _answer(send: Send, body: Any) -> None:
    await respond(send, msgspec.json.encode(body))
