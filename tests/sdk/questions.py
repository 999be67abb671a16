"""What every suite asks, and what the scripted server answers."""

from __future__ import annotations

from api.live_server import MODEL

ANSWER = "Paris is the capital."
WEATHER_QUESTION = "What is the weather in Paris?"
WEATHER_RESULT = "18 degrees"
TWO_CITIES = "Compare Oslo and Rome."
WEATHER_ANSWER = "It is 18 degrees in Paris."
JSON_QUESTION = "Describe the city as JSON."
CITY = {"name": "Paris", "population": 2_100_000}
LONG_QUESTION = "[long]"
TOO_LONG = "p" * 9000
CITY_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
KEY = "EMPTY"

__all__ = [
    "ANSWER",
    "CITY",
    "CITY_SCHEMA",
    "JSON_QUESTION",
    "KEY",
    "LONG_QUESTION",
    "MODEL",
    "TOO_LONG",
    "TWO_CITIES",
    "WEATHER_ANSWER",
    "WEATHER_QUESTION",
    "WEATHER_RESULT",
]
