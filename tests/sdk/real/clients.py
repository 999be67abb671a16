"""What an agent does with each client library, in one shape: the answers are the library's own, boiled down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

MODEL, KEY = "smollm2", "EMPTY"
HELLO = "What is the capital of France?"
WEATHER = "What is the weather in Paris?"
WEATHER_RESULT = "18 degrees and sunny"
CITY = "Describe Paris as JSON, with its name and population."
TOO_LONG = "word " * 4000
CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "population": {"type": "integer", "maximum": 99999999}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "city", "strict": True, "schema": CITY_SCHEMA},
}
NUM_TOKENS = 40


@dataclass(frozen=True)
class Said:
    """Text and the tokens that it took."""

    text: str
    num_tokens: int


class Client(Protocol):
    """A library pointed at the server, at temperature 0."""

    #: What it raises for a prompt beyond the window, and the words by which callers know it.
    overflow: type[Exception]
    overflow_words: str

    def chat(self) -> Said: ...
    def stream(self) -> Said: ...

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        """Arguments of the demanded call, and what is said to its result."""
        ...

    def structured(self) -> dict[str, Any]: ...
    def too_long(self) -> None: ...

    def leave(self) -> None:
        """Begin a long stream and go after its first piece."""
        ...


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def tool_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": WEATHER_RESULT}


class OpenAI:
    def __init__(self, url: str) -> None:
        openai = pytest.importorskip("openai")
        self.overflow, self.overflow_words = openai.BadRequestError, "context_length_exceeded"
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120)
        self._client, self._create = client, client.chat.completions.create
        self._ask: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": NUM_TOKENS}

    def chat(self) -> Said:
        answer = self._create(messages=user(HELLO), **self._ask)
        return Said(answer.choices[0].message.content, answer.usage.completion_tokens)

    def stream(self) -> Said:
        options = {"include_usage": True}
        chunks = list(self._create(messages=user(HELLO), stream=True, stream_options=options, **self._ask))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        return Said(text, chunks[-1].usage.completion_tokens)

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        ask = {**self._ask, "tools": [TOOL]}
        first = self._create(messages=user(WEATHER), tool_choice="required", parallel_tool_calls=False, **ask)
        message = first.choices[0].message
        [call] = message.tool_calls
        again = [*user(WEATHER), message.model_dump(exclude_none=True), tool_result(call.id)]
        second = self._create(messages=again, tool_choice="none", **ask)
        return json.loads(call.function.arguments), second.choices[0].message.content

    def structured(self) -> dict[str, Any]:
        answer = self._create(messages=user(CITY), response_format=FORMAT, **self._ask)
        found: dict[str, Any] = json.loads(answer.choices[0].message.content)
        return found

    def too_long(self) -> None:
        self._create(messages=user(TOO_LONG), **self._ask)

    def leave(self) -> None:
        ask = {**self._ask, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
        with self._create(messages=user(HELLO), stream=True, **ask) as stream:
            next(stream)


class LiteLLM(OpenAI):
    """Chat completions of another caller."""

    def __init__(self, url: str) -> None:
        litellm = pytest.importorskip("litellm")
        self.overflow, self.overflow_words = litellm.ContextWindowExceededError, "maximum context length"
        settings = {"api_base": f"{url}/v1", "api_key": KEY, "timeout": 120, "num_retries": 0}
        self._create = lambda **fields: litellm.completion(**settings, **fields)
        self._ask = {"model": f"hosted_vllm/{MODEL}", "temperature": 0, "max_tokens": NUM_TOKENS}

    def stream(self) -> Said:
        options = {"include_usage": True}
        chunks = list(self._create(messages=user(HELLO), stream=True, stream_options=options, **self._ask))
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        [usage] = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        return Said(text, usage.completion_tokens)

    def leave(self) -> None:
        stream = self._create(messages=user(HELLO), stream=True, **{**self._ask, "max_tokens": 1500})
        next(iter(stream))
        stream.completion_stream.close()


class Anthropic:
    def __init__(self, url: str) -> None:
        anthropic = pytest.importorskip("anthropic")
        self.overflow, self.overflow_words = anthropic.BadRequestError, "prompt is too long"
        self._messages = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=120).messages
        # This client has no parameter for the temperature any more; its API has.
        zero = {"extra_body": {"temperature": 0}}
        self._ask: dict[str, Any] = {"model": MODEL, "max_tokens": NUM_TOKENS, **zero}

    def chat(self) -> Said:
        answer = self._messages.create(messages=user(HELLO), **self._ask)
        return Said(answer.content[0].text, answer.usage.output_tokens)

    def stream(self) -> Said:
        with self._messages.stream(messages=user(HELLO), **self._ask) as events:
            text = "".join(events.text_stream)
            return Said(text, events.get_final_message().usage.output_tokens)

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        tool = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": PARAMETERS}
        ask = {**self._ask, "tools": [tool]}
        choice = {"type": "any", "disable_parallel_tool_use": True}
        first = self._messages.create(messages=user(WEATHER), tool_choice=choice, **ask)
        [use] = [block for block in first.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": WEATHER_RESULT}
        turns = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = self._messages.create(messages=user(WEATHER) + turns, tool_choice={"type": "none"}, **ask)
        return use.input, second.content[0].text

    def structured(self) -> dict[str, Any]:
        form = {"format": {"type": "json_schema", "schema": CITY_SCHEMA}}
        answer = self._messages.create(messages=user(CITY), output_config=form, **self._ask)
        found: dict[str, Any] = json.loads(answer.content[0].text)
        return found

    def too_long(self) -> None:
        self._messages.create(messages=user(TOO_LONG), **self._ask)

    def leave(self) -> None:
        with self._messages.stream(messages=user(HELLO), **{**self._ask, "max_tokens": 1500}) as events:
            next(iter(events))


class LangChain:
    def __init__(self, url: str) -> None:
        library = pytest.importorskip("langchain_openai")
        self._messages = pytest.importorskip("langchain_core.messages")
        self.overflow = pytest.importorskip("openai").BadRequestError
        self.overflow_words = "context_length_exceeded"
        settings = {"base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 120, "stream_usage": True}
        self._make = lambda n: library.ChatOpenAI(model=MODEL, temperature=0, max_tokens=n, **settings)
        self._model = self._make(NUM_TOKENS)

    def chat(self) -> Said:
        answer = self._model.invoke(HELLO)
        return Said(answer.content, answer.usage_metadata["output_tokens"])

    def stream(self) -> Said:
        chunks = list(self._model.stream(HELLO))
        joined = sum(chunks[1:], chunks[0])
        return Said(joined.content, joined.usage_metadata["output_tokens"])

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        demanded = self._model.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
        first = demanded.invoke(WEATHER)
        [call] = first.tool_calls
        result = self._messages.ToolMessage(WEATHER_RESULT, tool_call_id=call["id"])
        free = self._model.bind_tools([TOOL], tool_choice="none")
        return call["args"], free.invoke([self._messages.HumanMessage(WEATHER), first, result]).content

    def structured(self) -> dict[str, Any]:
        schema = {"title": "city", **CITY_SCHEMA}
        found: dict[str, Any] = self._model.with_structured_output(schema, strict=True).invoke(CITY)
        return found

    def too_long(self) -> None:
        self._model.invoke(TOO_LONG)

    def leave(self) -> None:
        stream = self._make(1500).stream(HELLO)
        next(stream)
        stream.close()


class LlamaIndex:
    def __init__(self, url: str) -> None:
        library = pytest.importorskip("llama_index.llms.openai_like")
        self._core = pytest.importorskip("llama_index.core.llms")
        self._tools = pytest.importorskip("llama_index.core.tools")
        self.overflow = pytest.importorskip("openai").BadRequestError
        self.overflow_words = "context_length_exceeded"
        settings = {"api_base": f"{url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 120, "context_window": 2048}
        kinds = {"is_chat_model": True, "is_function_calling_model": True}
        self._make = lambda n: library.OpenAILike(model=MODEL, temperature=0, max_tokens=n, **settings, **kinds)
        self._llm = self._make(NUM_TOKENS)

    def _user(self, text: str) -> Any:
        return self._core.ChatMessage(role="user", content=text)

    def chat(self) -> Said:
        answer = self._llm.chat([self._user(HELLO)])
        return Said(answer.message.content, answer.raw.usage.completion_tokens)

    def stream(self) -> Said:
        options = {"include_usage": True}
        chunks = list(self._llm.stream_chat([self._user(HELLO)], stream_options=options))
        usage = next(chunk.raw.usage for chunk in reversed(chunks) if getattr(chunk.raw, "usage", None))
        return Said("".join(chunk.delta or "" for chunk in chunks), usage.completion_tokens)

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        def get_weather(city: str) -> str:
            """The weather in a city."""
            return WEATHER_RESULT

        tool = self._tools.FunctionTool.from_defaults(get_weather)
        first = self._llm.chat_with_tools([tool], user_msg=WEATHER, tool_required=True)
        [call] = self._llm.get_tool_calls_from_response(first)
        extra = {"tool_call_id": call.tool_id}
        result = self._core.ChatMessage(role="tool", content=WEATHER_RESULT, additional_kwargs=extra)
        second = self._llm.chat([self._user(WEATHER), first.message, result])
        return call.tool_kwargs, second.message.content

    def structured(self) -> dict[str, Any]:
        answer = self._llm.chat([self._user(CITY)], response_format=FORMAT)
        found: dict[str, Any] = json.loads(answer.message.content)
        return found

    def too_long(self) -> None:
        self._llm.chat([self._user(TOO_LONG)])

    def leave(self) -> None:
        stream = self._make(1500).stream_chat([self._user(HELLO)])
        next(stream)
        stream.close()


class Smolagents:
    def __init__(self, url: str) -> None:
        self._library = pytest.importorskip("smolagents")
        self.overflow = pytest.importorskip("openai").BadRequestError
        self.overflow_words = "context_length_exceeded"
        settings = {"api_base": f"{url}/v1", "api_key": KEY, "client_kwargs": {"max_retries": 0, "timeout": 120}}
        self._make = lambda n: self._library.OpenAIModel(model_id=MODEL, temperature=0, max_tokens=n, **settings)
        self._model = self._make(NUM_TOKENS)

    def _turn(self, role: str, text: str) -> Any:
        return self._library.ChatMessage(role=role, content=[{"type": "text", "text": text}])

    def chat(self) -> Said:
        answer = self._model.generate([self._turn("user", HELLO)])
        return Said(answer.content, answer.token_usage.output_tokens)

    def stream(self) -> Said:
        deltas = list(self._model.generate_stream([self._turn("user", HELLO)]))
        counted = [delta.token_usage.output_tokens for delta in deltas if delta.token_usage]
        return Said("".join(delta.content or "" for delta in deltas), counted[-1])

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        weather = self._library.tool(get_weather)
        question = self._turn("user", WEATHER)
        first = self._model.generate([question], tools_to_call_from=[weather], parallel_tool_calls=False)
        [call] = first.tool_calls
        arguments = call.function.arguments
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        turns = [question, self._turn("assistant", f"Calling {call.function.name}"), self._turn("user", WEATHER_RESULT)]
        return arguments, self._model.generate(turns).content

    def structured(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._model.generate([self._turn("user", CITY)], response_format=FORMAT).content
        )
        return found

    def too_long(self) -> None:
        self._model.generate([self._turn("user", TOO_LONG)])

    def leave(self) -> None:
        stream = self._make(1500).generate_stream([self._turn("user", HELLO)])
        next(stream)
        stream.close()


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return WEATHER_RESULT


def run(make: Callable[[], Any]) -> Any:
    return asyncio.run(make())
