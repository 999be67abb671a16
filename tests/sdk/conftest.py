"""One scripted server for all client libraries. A suite whose library is not installed says so and is skipped.

Every suite does the same: chat, a stream with usage, a tool loop of two turns, structured output, the overflow error,
and leaving early. `tests/sdk/requirements.txt` lists the libraries; `make test-sdk` installs them apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.live_server import LiveServer, Setup
from twinpath.engine.scripted import Script


def weather_in(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


CALL = weather_in("Paris")
#: First match wins, and a later turn's prompt holds the earlier ones.
SCRIPTS = (
    Script(match="Oslo and Rome", text="\n".join(map(weather_in, ("Oslo", "Rome"))), chunks=(3, 1)),
    Script(match="18 degrees", text="It is 18 degrees in Paris.", chunks=(3,)),
    Script(match="weather", text=CALL, chunks=(1, 4, 2)),
    Script(match="as JSON", text='{"name":"Paris","population":2100000}', chunks=(2,)),
    Script(match="[long]", text="x" * 3000, step_ms=2.0),
)


@pytest.fixture(scope="session")
def sdk_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(scripts=SCRIPTS, tool_format="hermes"))
    yield server
    server.close()


@pytest.fixture
def server(sdk_server: LiveServer) -> Iterator[LiveServer]:
    yield sdk_server
    sdk_server.at_rest()


@pytest.fixture
def base_url(server: LiveServer) -> str:
    return f"{server.url}/v1"
