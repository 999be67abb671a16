"""schemathesis over our own OpenAPI document: no request makes a 5xx, and answers are what the document says."""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.live_server import MODEL, LiveServer
from twinpath.api.openapi import openapi_document

#: 25 examples per operation, bodies both as the schema has them and broken, the same ones every time.
CONFIG = {
    "seed": 1,
    "generation": {"mode": "all", "max-examples": 25, "database": "none"},
    "phases": {"stateful": {"enabled": False}},
}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(
    json.loads(openapi_document(MODEL)), config=SchemathesisConfig.from_dict(CONFIG)
)


@schema.parametrize()
def test_generated_requests_are_answered_as_documented(case: schemathesis.Case[Any], shared_server: LiveServer) -> None:
    case.call_and_validate(base_url=shared_server.url, checks=CHECKS, timeout=20)
