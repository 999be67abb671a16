"""schemathesis over our own OpenAPI document: no request makes a 5xx, and answers are what the document says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.live_server import MODEL, LiveServer, Setup
from twinpath.api.openapi import openapi_document
from twinpath.engine.scripted import ScriptedShape

#: 25 examples per operation (`make test-schema`: 200), bodies both as the schema has them and broken, the same ones
#: every time.
NUM_EXAMPLES = int(os.environ.get("TWINPATH_SCHEMA_EXAMPLES", "25"))
CONFIG = {
    "seed": 1,
    "suppress-health-check": ["too_slow"],
    "generation": {"mode": "all", "max-examples": NUM_EXAMPLES, "database": "none"},
    "phases": {"stateful": {"enabled": False}},
}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(
    json.loads(openapi_document(MODEL)), config=SchemathesisConfig.from_dict(CONFIG)
)


@pytest.fixture(scope="module")
def small_server() -> Iterator[LiveServer]:
    """A grammar may make the scripted engine write on to the end of the window, so that is near."""
    server = LiveServer(Setup(shape=ScriptedShape(max_model_len=256, max_step_tokens=256)))
    yield server
    server.at_rest()
    server.close()


@schema.parametrize()
def test_generated_requests_are_answered_as_documented(case: schemathesis.Case[Any], small_server: LiveServer) -> None:
    case.call_and_validate(base_url=small_server.url, checks=CHECKS, timeout=20)
