"""One shared server for the cases that need nothing special; after each case it must be at rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.live_server import LiveServer, Setup
from twinpath.engine.scripted import Script

#: Answers by a word in the prompt; anything else gets the default, "Paris is the capital."
SCRIPTS = (
    Script(match="[spaces]", text=" leading\n\n    four\tx  y \n", chunks=(1, 2, 3)),
    Script(match="[abcdef]", text="abcdef"),
    Script(match="[dots]", text="a.b.c.d"),
    Script(match="[cut]", bytes_hex=b"ok\xf0\x9f\x98".hex()),
    Script(match="[accent]", text="é!"),
    Script(match="[fails at 0]", text="abc", fail_at=0),
    Script(match="[fails at 2]", text="abc", fail_at=2),
    Script(match="[long]", text="x" * 6000, chunks=(8,)),
)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[LiveServer]:
    server = LiveServer(Setup(scripts=SCRIPTS))
    yield server
    server.close()


@pytest.fixture
def server(shared_server: LiveServer) -> Iterator[LiveServer]:
    yield shared_server
    shared_server.at_rest()
