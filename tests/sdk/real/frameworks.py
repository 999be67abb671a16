"""The agent frameworks, in the shape of `clients.Client`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sdk.real.clients import (
    CITY,
    CITY_SCHEMA,
    HELLO,
    KEY,
    MODEL,
    NUM_TOKENS,
    PARAMETERS,
    TOO_LONG,
    WEATHER,
    WEATHER_RESULT,
    Said,
    get_weather,
    run,
)

SDK = Path(__file__).parents[1]


class AgentsSdk:
    """OpenAI's Agents SDK over chat completions; `Responses` is the same over its default API."""

    kind = "OpenAIChatCompletionsModel"

    def __init__(self, url: str) -> None:
        self._agents = pytest.importorskip("agents")
        self._openai = pytest.importorskip("openai")
        pydantic = pytest.importorskip("pydantic")
        self._agents.set_tracing_disabled(True)
        self.overflow, self.overflow_words = self._openai.BadRequestError, "context_length_exceeded"
        self._base_url = f"{url}/v1"
        name = (str, pydantic.Field(max_length=30))
        self._city = pydantic.create_model("City", name=name, population=(int, pydantic.Field(le=99_999_999)))

    def _agent(self, client: Any, *, num_tokens: int = NUM_TOKENS, tool_choice: str | None = None, **more: Any) -> Any:
        model = getattr(self._agents, self.kind)(model=MODEL, openai_client=client)
        parallel = {"parallel_tool_calls": False} if "tools" in more else {}
        settings = self._agents.ModelSettings(
            temperature=0, max_tokens=num_tokens, tool_choice=tool_choice, include_usage=True, **parallel
        )
        return self._agents.Agent(name="a", model=model, model_settings=settings, **more)

    def _client(self) -> Any:
        return self._openai.AsyncOpenAI(base_url=self._base_url, api_key=KEY, max_retries=0, timeout=120)

    def _run(self, question: str, **agent: Any) -> Any:
        async def ask() -> Any:
            async with self._client() as client:
                return await self._agents.Runner.run(self._agent(client, **agent), question, max_turns=3)

        return run(ask)

    def chat(self) -> Said:
        result = self._run(HELLO)
        return Said(result.final_output, result.context_wrapper.usage.output_tokens)

    def stream(self) -> Said:
        async def ask() -> Said:
            async with self._client() as client:
                running = self._agents.Runner.run_streamed(self._agent(client), HELLO)
                text = ""
                async for event in running.stream_events():
                    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                        text += event.data.delta
                return Said(text, running.context_wrapper.usage.output_tokens)

        said: Said = run(ask)
        return said

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        """The SDK itself demands the first call alone."""
        tool = self._agents.function_tool(get_weather)
        result = self._run(WEATHER, tool_choice="required", tools=[tool])
        [call] = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
        return json.loads(call.arguments), result.final_output

    def structured(self) -> dict[str, Any]:
        found: dict[str, Any] = self._run(CITY, output_type=self._city).final_output.model_dump()
        return found

    def too_long(self) -> None:
        self._run(TOO_LONG)

    def leave(self) -> None:
        async def ask() -> None:
            async with self._client() as client:
                running = self._agents.Runner.run_streamed(self._agent(client, num_tokens=1500), HELLO)
                async for _ in running.stream_events():
                    break
                running.cancel()
                async for _ in running.stream_events():
                    pass

        run(ask)


class Responses(AgentsSdk):
    kind = "OpenAIResponsesModel"


class PydanticAI:
    def __init__(self, url: str) -> None:
        self._ai = pytest.importorskip("pydantic_ai")
        self._direct = pytest.importorskip("pydantic_ai.direct")
        self._models = pytest.importorskip("pydantic_ai.models")
        self._messages = pytest.importorskip("pydantic_ai.messages")
        self._openai = pytest.importorskip("pydantic_ai.models.openai")
        self._providers = pytest.importorskip("pydantic_ai.providers.openai")
        pydantic = pytest.importorskip("pydantic")
        self.overflow = pytest.importorskip("pydantic_ai.exceptions").ModelHTTPError
        self.overflow_words = "context_length_exceeded"
        self._base_url = f"{url}/v1"
        name = (str, pydantic.Field(max_length=30))
        self._city = pydantic.create_model("City", name=name, population=(int, pydantic.Field(le=99_999_999)))

    def _model(self) -> Any:
        provider = self._providers.OpenAIProvider(base_url=self._base_url, api_key=KEY)
        return self._openai.OpenAIChatModel(MODEL, provider=provider)

    def _agent(self, num_tokens: int = NUM_TOKENS, **more: Any) -> Any:
        return self._ai.Agent(self._model(), model_settings={"temperature": 0, "max_tokens": num_tokens}, **more)

    @staticmethod
    def _num_tokens(result: Any) -> int:
        usage = result.usage() if callable(result.usage) else result.usage
        count: int = usage.output_tokens
        return count

    def chat(self) -> Said:
        result = run(lambda: self._agent().run(HELLO))
        return Said(result.output, self._num_tokens(result))

    def stream(self) -> Said:
        async def ask() -> Said:
            async with self._agent().run_stream(HELLO) as result:
                return Said(await result.get_output(), self._num_tokens(result))

        said: Said = run(ask)
        return said

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        """Turn by turn: an agent with tools demands nothing, and this model calls nothing by itself."""
        tool = self._ai.ToolDefinition(name="get_weather", description="", parameters_json_schema=PARAMETERS)
        settings = {"temperature": 0, "max_tokens": NUM_TOKENS, "parallel_tool_calls": False}

        def ask(history: list[Any], demanded: bool) -> Any:
            parameters = self._models.ModelRequestParameters(function_tools=[tool], allow_text_output=not demanded)
            return run(
                lambda: self._direct.model_request(
                    self._model(), history, model_settings=settings, model_request_parameters=parameters
                )
            )

        history = [self._messages.ModelRequest.user_text_prompt(WEATHER)]
        first = ask(history, demanded=True)
        [call] = [part for part in first.parts if part.part_kind == "tool-call"]
        result = self._messages.ToolReturnPart("get_weather", WEATHER_RESULT, call.tool_call_id)
        second = ask([*history, first, self._messages.ModelRequest(parts=[result])], demanded=False)
        return call.args_as_dict(), "".join(part.content for part in second.parts if part.part_kind == "text")

    def structured(self) -> dict[str, Any]:
        agent = self._agent(output_type=self._ai.NativeOutput(self._city))
        found: dict[str, Any] = run(lambda: agent.run(CITY)).output.model_dump()
        return found

    def too_long(self) -> None:
        run(lambda: self._agent().run(TOO_LONG))

    def leave(self) -> None:
        async def ask() -> None:
            async with self._agent(1500).run_stream(HELLO) as result:
                async for _ in result.stream_text():
                    break

        run(ask)


class Overflow(Exception):
    """The AI SDK's refusal, told by its program."""


class AiSdk:
    """The AI SDK's OpenAI-compatible provider under Node: one program does everything."""

    overflow, overflow_words = Overflow, "maximum context length"

    def __init__(self, url: str) -> None:
        node = shutil.which("node")
        if node is None or not (SDK / "node_modules" / "@ai-sdk" / "openai-compatible").exists():
            pytest.skip("node or @ai-sdk/openai-compatible is not installed (make test-sdk)")
        self._command = [node, str(SDK / "real" / "ai_sdk.mjs"), f"{url}/v1", MODEL]

    def _do(self, what: str, text: str) -> Any:
        schemas = json.dumps({"tool": PARAMETERS, "city": CITY_SCHEMA, "result": WEATHER_RESULT})
        done = subprocess.run(
            [*self._command, what, text, schemas], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def chat(self) -> Said:
        return Said(**self._do("chat", HELLO))

    def stream(self) -> Said:
        return Said(**self._do("stream", HELLO))

    def tool_turns(self) -> tuple[dict[str, Any], str]:
        found = self._do("tools", WEATHER)
        return found["input"], found["text"]

    def structured(self) -> dict[str, Any]:
        found: dict[str, Any] = self._do("structured", CITY)
        return found

    def too_long(self) -> None:
        found = self._do("chat", TOO_LONG)
        assert found["isApiCallError"] and found["status"] == 400
        raise Overflow(found["message"])

    def leave(self) -> None:
        self._do("leave", HELLO)
