"""A 135M model under strict schemas, through the real client: whatever it makes of the question, its JSON fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from e2e.served import serving

MODEL = "smollm2"


class Person(BaseModel):
    """Enough kinds of values; bounded, since a small model seldom stops by itself."""

    name: Annotated[str, Field(max_length=30)]
    age: Annotated[int, Field(ge=0, le=150)]
    role: Literal["student", "teacher", "engineer"]
    hobbies: Annotated[list[Annotated[str, Field(max_length=20)]], Field(max_length=3)]


QUESTION: Any = [{"role": "user", "content": "Describe a person named Alice as JSON."}]


@pytest.fixture(scope="module")
def client(default_model_path: Path) -> Iterator[openai.OpenAI]:
    arguments = [str(default_model_path), "--port", "0", "--served-model-name", MODEL]
    with serving(*arguments) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", timeout=60) as found:
        yield found


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_strict_schema_is_parsed(client: openai.OpenAI, temperature: float) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": temperature, "seed": 5}
    answer = client.chat.completions.parse(**ask, response_format=Person, max_tokens=150)
    assert isinstance(answer.choices[0].message.parsed, Person)
    assert answer.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**ask, response_format=Person, max_tokens=150) as events:
        streamed = events.get_final_completion()
    assert streamed.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.model
@pytest.mark.parametrize("max_tokens", [24, 33])
def test_answers_are_complete_when_their_tokens_run_out(client: openai.OpenAI, max_tokens: int) -> None:
    for seed in range(4):
        try:
            answer = client.chat.completions.parse(
                model=MODEL,
                messages=QUESTION,
                response_format=Person,
                max_tokens=max_tokens,
                temperature=1.5,
                seed=seed,
            )
        except openai.LengthFinishReasonError as cut:
            answer = cut.completion  # type: ignore[assignment]
            assert answer.usage is not None and answer.usage.completion_tokens <= max_tokens
        Person.model_validate(json.loads(answer.choices[0].message.content or ""))
