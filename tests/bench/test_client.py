from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from bench.scripted_http import STREAM_HEAD, StepClock, chunk, event, plain, read_request, serving
from twinpath.bench import LoadClient

USAGE = '{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}'


def chat(text: str, finish: str = "null") -> bytes:
    return event(f'{{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":{finish}}}]}}')


async def test_stamps_each_piece_when_it_arrives_and_counts_from_the_intended_time() -> None:
    clock = StepClock()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        role = event('{"choices":[{"delta":{"role":"assistant","content":""}}]}')
        await clock.write_at(11.0, writer, STREAM_HEAD + chunk(role))
        await clock.write_at(12.0, writer, chunk(chat("a")))
        await clock.write_at(12.5, writer, chunk(chat("b")))
        await clock.write_at(14.0, writer, chunk(chat("c", '"stop"')))
        await clock.write_at(15.0, writer, chunk(event(USAGE) + event("[DONE]")) + b"0\r\n\r\n")

    async with serving(handler) as url:
        client = LoadClient(url, keep_text=True, clock=clock)
        clock.now = 10.0
        record = await client.send("/v1/chat/completions", b"{}", index=3, intended_s=9.0)
        await client.aclose()
    assert record.ok and record.index == 3 and record.text == "abc" and record.finish_reason == "stop"
    assert (record.sent_s, record.first_token_s, record.last_token_s, record.done_s) == (10.0, 12.0, 14.0, 15.0)
    assert record.gaps_ms() == [500.0, 1500.0]
    assert (record.ttft_ms, record.send_lag_ms, record.latency_ms) == (3000.0, 1000.0, 6000.0)
    assert record.token_ms == 1000.0
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 3, 4)


async def test_reads_text_completions_and_carriage_returns_cut_anywhere() -> None:
    body = b': comment\r\n\r\ndata: {"choices":[{"text":"x"}]}\r\n\r\ndata: {"choices":[{"text":"y"}]}\r\n\r\n'
    body += b"data: [DONE]\r\n\r\n"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD)
        for index in range(len(body)):
            writer.write(chunk(body[index : index + 1]))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(handler) as url:
        client = LoadClient(url, keep_text=True)
        record = await client.send("/v1/completions", b"{}")
        await client.aclose()
    assert record.ok and record.text == "xy" and len(record.piece_s) == 2


async def test_reads_an_unstreamed_answer() -> None:
    answer = b'{"choices":[{"message":{"content":"Paris"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2}}'

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await read_request(reader) == b'{"stream":false}'
        writer.write(plain(answer))

    async with serving(handler) as url:
        client = LoadClient(url, keep_text=True)
        record = await client.send("/v1/chat/completions", b'{"stream":false}')
        await client.aclose()
    assert record.ok and record.text == "Paris" and record.prompt_tokens == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (plain(b'{"error":{"message":"slow down"}}', "429 Too Many Requests"), "slow down"),
        (plain(b"upstream is down", "502 Bad Gateway"), "unreadable answer"),
        (plain(b"", "503 Service Unavailable"), "status 503"),
        (STREAM_HEAD + chunk(event('{"error":{"message":"engine died"}}')) + b"0\r\n\r\n", "engine died"),
        (STREAM_HEAD + chunk(chat("a")) + b"0\r\n\r\n", "without [DONE]"),
        (STREAM_HEAD + chunk(chat("a")), "connection lost"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"", "connection lost"),
    ],
)
async def test_a_failure_is_recorded_not_raised(answer: bytes, said: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    async with serving(handler) as url:
        client = LoadClient(url)
        record = await client.send("/v1/chat/completions", b"{}")
        await client.aclose()
    assert not record.ok and said in record.error and record.done_s is not None


async def test_refused_connection_and_silence_are_recorded() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = LoadClient(f"http://127.0.0.1:{probe.getsockname()[1]}")
        assert "refused" in (await closed.send("/", b"{}")).error.lower()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as url:
        assert "no answer within" in (await LoadClient(url, timeout_s=0.05).send("/", b"{}")).error


async def test_keeps_connections_and_replaces_those_that_the_server_closed() -> None:
    async def two_then_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await read_request(reader)
            writer.write(plain(b'{"choices":[]}'))

    async with serving(two_then_close) as url:
        client = LoadClient(url)
        records = [await client.send("/", b"{}") for _ in range(5)]
        await client.aclose()
    assert all(record.ok for record in records), [record.error for record in records]
    assert client.num_connections_opened == 3


async def test_connection_close_is_obeyed() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(plain(b'{"choices":[]}', extra="Connection: close\r\n"))
        await reader.read()

    async with serving(handler) as url:
        client = LoadClient(url)
        assert all([(await client.send("/", b"{}")).ok for _ in range(3)])
        await client.aclose()
    assert client.num_connections_opened == 3


async def test_cancelling_vanishes_from_the_server() -> None:
    started, gone = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + chunk(chat("a")))
        started.set()
        assert await reader.read() == b""
        gone.set()

    async with serving(handler) as url:
        client = LoadClient(url)
        task = asyncio.create_task(client.send("/", b"{}"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 10)


async def test_sends_key_headers_and_path_prefix() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(plain(b'{"choices":[]}'))

    async with serving(handler) as url:
        client = LoadClient(url + "/proxy/", api_key="sk-1")
        await client.send("/v1/completions", b"", headers={"X-Session-ID": "s7"})
        await client.aclose()
    assert seen[0].startswith(b"POST /proxy/v1/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer sk-1\r\n" in seen[0] and b"\r\nX-Session-ID: s7\r\n" in seen[0]


def test_works_on_uvloop() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + chunk(chat("a")) + chunk(event("[DONE]")) + b"0\r\n\r\n")

    async def run() -> bool:
        async with serving(handler) as url:
            client = LoadClient(url)
            record = await client.send("/", b"{}")
            await client.aclose()
            return record.ok

    assert uvloop.run(run())


def test_refuses_a_base_url_that_is_none() -> None:
    with pytest.raises(ValueError, match="base URL"):
        LoadClient("localhost:8000")
