"""schemathesis over our own OpenAPI document: no request makes a 5xx, and answers are what the document says."""

from __future__ import annotations

import json

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.live_server import LiveServer, Setup
from twinpath.api.openapi import openapi_document

EXAMPLES = 25
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(json.loads(openapi_document("org/scripted")))
