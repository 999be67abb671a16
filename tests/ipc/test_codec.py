"""Frames survive any cut of the stream; what is no frame of ours is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpath.ipc import FrameError
from twinpath.ipc.codec import MAX_FRAME_BYTES, engine_codec, gateway_codec
from twinpath.ipc.messages import Cancel, Drain, Events, Gauges, Heartbeat, Ready, Submit
from twinpath.types import (
    ErrorEvent,
    FinishEvent,
    FinishReason,
    Request,
    SamplingParams,
    TokenLogprob,
    TokensEvent,
    Usage,
)

REQUEST = Request(
    request_id="r",
    prompt_ids=[1, 2, 49_151],
    sampling=SamplingParams(max_tokens=5, logit_bias={7: -1.5}, stop_token_ids=(2,), seed=2**63),
    cache_salt="key",
)
TO_ENGINE = [Submit(REQUEST), Cancel("r"), Drain()]
TO_GATEWAY = [
    Ready(49_152, 8192, 32, 512, "an engine", 64, {"threads": "2"}),
    Heartbeat(True, 17, Gauges(running=3)),
    Events(
        [
            TokensEvent("r", [5], [TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.0)))], None, 32),
            FinishEvent("r", FinishReason.LENGTH, Usage(prompt_tokens=3, completion_tokens=1)),
            ErrorEvent("s", "no", "engine_error", 500),
        ]
    ),
]


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
@settings(deadline=None)
def test_messages_come_back_equal_however_the_stream_is_cut(cuts: list[int]) -> None:
    for encoder, decoder, messages in (
        (gateway_codec(), engine_codec(), TO_ENGINE),
        (engine_codec(), gateway_codec(), TO_GATEWAY),
    ):
        stream = b"".join(encoder.encode(message) for message in messages)
        bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
        pieces = [stream[begin:end] for begin, end in pairwise(bounds)]
        assert [message for piece in pieces for message in decoder.feed(piece)] == messages


def test_oversized_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match=f"limit of {MAX_FRAME_BYTES}"):
        list(engine_codec().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa4type\xa7unknown"])
def test_undecodable_frame_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="undecodable"):
        list(engine_codec().feed(len(body).to_bytes(4, "little") + body))


def test_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(FrameError, match="undecodable"):
        list(engine_codec().feed(engine_codec().encode(TO_GATEWAY[0])))
