"""One look says whether any of some fields was given."""

from __future__ import annotations

import msgspec
import pytest

from twinpath.api.field_look import FieldLook
from twinpath.api.schemas import ChatCompletionRequest, CompletionRequest

LOOK = FieldLook({"top_k", "metadata", "suffix", "tools"})
CHAT, COMPLETION = msgspec.json.Decoder(ChatCompletionRequest), msgspec.json.Decoder(CompletionRequest)
MESSAGES = '"messages": [{"role": "user", "content": "q"}]'


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", False),
        (', "temperature": 0.5, "suffix": "not a field of chat"', False),
        (', "top_k": null', False),
        (', "top_k": 0', True),
        (', "metadata": {}', True),
        (', "metadata": null', True),
        (', "tools": []', True),
    ],
)
def test_chat_fields_are_seen(more: str, found: bool) -> None:
    assert LOOK.finds_any(CHAT.decode(f"{{{MESSAGES}{more}}}")) is found


@pytest.mark.parametrize(
    ("more", "found"),
    [("", False), (', "tools": [1]', False), (', "suffix": ""', True), (', "top_k": 3', True)],
)
def test_a_field_that_the_endpoint_does_not_have_is_absent(more: str, found: bool) -> None:
    assert LOOK.finds_any(COMPLETION.decode(f'{{"prompt": "p"{more}}}')) is found
