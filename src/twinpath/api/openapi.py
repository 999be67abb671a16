"""The OpenAPI 3.1 document, made from the same structs that decode and encode."""

from __future__ import annotations

from typing import Any

import msgspec

from twinpath import __version__
from twinpath.api.anthropic.answers import MessageAnswer, TokenCount
from twinpath.api.anthropic.schemas import REFUSED_VALUES as MESSAGES_REFUSED
from twinpath.api.anthropic.schemas import CountTokensRequest, MessagesRequest
from twinpath.api.envelope import ErrorEnvelope, MessagesErrorEnvelope
from twinpath.api.normalize import NEUTRAL_VALUES
from twinpath.api.responses import ChatCompletion, Completion, Health, ModelCard, ModelList
from twinpath.api.responses_api.answers import DeletedResponse, ResponseBody
from twinpath.api.responses_api.schemas import REFUSED_VALUES as RESPONSES_REFUSED
from twinpath.api.responses_api.schemas import ResponsesRequest
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest, Tool, ToolFunction
from twinpath.api.sessions import SessionBody, SessionList
from twinpath.api.templates import TemplateBody, TemplateList, TemplateRequest
from twinpath.api.tokenization import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest

_REF = "#/components/schemas/{name}"
_STRUCTS = (
    SessionBody,
    SessionList,
    TemplateRequest,
    TemplateBody,
    TemplateList,
    ChatCompletionRequest,
    Tool,
    CompletionRequest,
    ChatCompletion,
    Completion,
    ModelCard,
    ModelList,
    Health,
    ErrorEnvelope,
    ResponsesRequest,
    ResponseBody,
    DeletedResponse,
    MessagesRequest,
    CountTokensRequest,
    MessageAnswer,
    TokenCount,
    MessagesErrorEnvelope,
    TokenizeRequest,
    Tokenized,
    DetokenizeRequest,
    Detokenized,
)
_CHOICES = ["none", "auto"]
_NOT_SERVED = "Nothing else is served yet."
#: One event of a stream, as SSE parsers see it.
_EVENT = {
    "type": "object",
    "description": "With `stream`: `data` is a chunk, or an error envelope that ends the stream, or [DONE].",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
#: What any operation may answer besides its own; one shape for all.
_REFUSALS = {
    "400": "The request is not valid, or asks for what is not served; `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "The API key is not an administrator's.",
    "404": "No such model or route.",
    "405": "The route has other methods; see the Allow header.",
    "408": "The body did not arrive in time.",
    "409": "There is no room for it, or it is there already.",
    "413": "The body is too large.",
    "415": "The body has a Content-Encoding.",
    "429": "Too many requests wait; see Retry-After.",
    "500": "The engine or the server failed.",
    "503": "Loading, restarting, full or shutting down; see Retry-After.",
}


def openapi_document(model_name: str) -> bytes:
    """The document as JSON."""
    schemas = msgspec.json.schema_components(_STRUCTS, ref_template=_REF)[1]
    for struct in (ChatCompletionRequest, CompletionRequest):
        _say_what_is_served(schemas[struct.__name__]["properties"], model_name)
    _say_what_dialects_serve(schemas, model_name)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "twinpath", "version": __version__, "description": f"Serves {model_name}."},
        "paths": {
            "/v1/chat/completions": {
                "post": _operation("createChatCompletion", ChatCompletionRequest, ChatCompletion, streams=True)
            },
            "/v1/completions": {"post": _operation("createCompletion", CompletionRequest, Completion, streams=True)},
            **_dialect_paths(),
            **_holding_paths(),
            "/v1/models": {"get": _get("listModels", "The served models.", ModelList)},
            "/v1/models/{id}": {
                "get": {**_get("getModel", "One model.", ModelCard), "parameters": [_model_id(model_name)]}
            },
            "/health": {"get": _health("live", "Is the server alive?")},
            "/health/ready": {"get": _health("ready", "Can it take work?")},
            "/metrics": {"get": _get("metrics", "Prometheus metrics.", None, "text/plain")},
        },
        "components": {
            "schemas": schemas,
            "responses": {status: _refusal(text) for status, text in _REFUSALS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }
    return msgspec.json.encode(document)


def _say_what_is_served(properties: dict[str, Any], model_name: str) -> None:
    """What `normalize` checks after decoding, in the words of JSON Schema."""
    properties["model"] = {"enum": [model_name, "", None]}
    for name, neutral in NEUTRAL_VALUES.items():
        if name in properties:
            properties[name] = {"enum": [*neutral, None], "description": _NOT_SERVED}
    if "tools" in properties:
        nothing = {"type": "null"}
        properties["tools"] = {"anyOf": [{"type": "array", "items": _schema_ref(Tool)}, nothing]}
        properties["functions"] = {"anyOf": [{"type": "array", "items": _schema_ref(ToolFunction)}, nothing]}
        for name, words in (("tool_choice", [*_CHOICES, "required"]), ("function_call", _CHOICES)):
            properties[name] = {"anyOf": [{"enum": words}, {"type": "object"}, nothing]}
    kwargs = properties.get("chat_template_kwargs")
    if kwargs is not None:
        kwargs["anyOf"] = [{"type": "object"}, {"type": "null"}]
    properties["logit_bias"]["anyOf"][0]["propertyNames"] = {"pattern": "^[0-9]{1,19}$"}
    if "prompt" in properties:
        text, mixture = properties["prompt"]["anyOf"]
        kinds = [{**mixture, "items": kind} for kind in mixture["items"]["anyOf"]]
        properties["prompt"]["anyOf"] = [text, *kinds]


def _say_what_dialects_serve(schemas: dict[str, Any], model_name: str) -> None:
    """The same for the other endpoints, whose checks are those of their `convert`."""
    for struct in (ResponsesRequest, MessagesRequest, CountTokensRequest, TokenizeRequest, DetokenizeRequest):
        schemas[struct.__name__]["properties"]["model"] = {"enum": [model_name, "", None]}
    for struct, values in (
        (ResponsesRequest, RESPONSES_REFUSED),
        (MessagesRequest, MESSAGES_REFUSED),
        (CountTokensRequest, MESSAGES_REFUSED),
    ):
        for name, neutral in values.items():
            schemas[struct.__name__]["properties"][name] = {"enum": [*neutral, None], "description": _NOT_SERVED}


def _dialect_paths() -> dict[str, Any]:
    response_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    messages = _operation("createMessage", MessagesRequest, MessageAnswer, streams=True)
    count = _operation("countMessageTokens", CountTokensRequest, TokenCount)
    for operation in (messages, count):
        content = {"application/json": {"schema": _schema_ref(MessagesErrorEnvelope)}}
        operation["responses"] |= {
            status: {"description": text, "content": content} for status, text in _REFUSALS.items()
        }
    return {
        "/v1/responses": {"post": _operation("createResponse", ResponsesRequest, ResponseBody, streams=True)},
        "/v1/responses/{id}": {
            "parameters": [response_id],
            "get": _get("getResponse", "A stored response.", ResponseBody),
            "delete": _get("deleteResponse", "It is gone.", DeletedResponse),
        },
        "/v1/messages": {"post": messages},
        "/v1/messages/count_tokens": {"post": count},
        "/tokenize": {"post": _operation("tokenize", TokenizeRequest, Tokenized)},
        "/detokenize": {"post": _operation("detokenize", DetokenizeRequest, Detokenized)},
    }


def _holding_paths() -> dict[str, Any]:
    def named(name: str) -> list[dict[str, Any]]:
        return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]

    return {
        "/v1/twinpath/sessions": {"get": _get("listSessions", "The caller's sessions.", SessionList)},
        "/v1/twinpath/sessions/{id}": {
            "parameters": named("id"),
            "get": _get("getSession", "One session.", SessionBody),
            "delete": _get("endSession", "It has ended.", SessionBody),
        },
        "/v1/twinpath/templates": {
            "get": _get("listTemplates", "The pinned templates.", TemplateList),
            "post": _operation("pinTemplate", TemplateRequest, TemplateBody),
        },
        "/v1/twinpath/templates/{name}": {
            "parameters": named("name"),
            "get": _get("getTemplate", "One template.", TemplateBody),
            "delete": _get("unpinTemplate", "It is pinned no more.", TemplateBody),
        },
    }


def _schema_ref(struct: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _schema_ref(ErrorEnvelope)}}}


def _responses(description: str, content: dict[str, Any]) -> dict[str, Any]:
    refusals = {status: {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS}
    return {"200": {"description": description, "content": content}, **refusals}


def _operation(operation_id: str, request: type, answer: type, *, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _schema_ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": _EVENT}
    return {
        "operationId": operation_id,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _schema_ref(request)}}},
        "responses": _responses("The answer.", content),
    }


def _get(operation_id: str, text: str, answer: type | None, media_type: str = "application/json") -> dict[str, Any]:
    schema = {"type": "string"} if answer is None else _schema_ref(answer)
    return {"operationId": operation_id, "responses": _responses(text, {media_type: {"schema": schema}})}


def _health(operation_id: str, text: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _schema_ref(Health)}}
    operation = _get(operation_id, text, Health)
    operation["responses"]["503"] = {"description": "No, and why.", "content": content}
    return {**operation, "security": []}


def _model_id(model_name: str) -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "example": model_name}
