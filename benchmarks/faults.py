"""How long a fault lasts: from SIGKILL or SIGSTOP of a busy engine to the error event, and to the next served token.

    python -m benchmarks.faults MODEL.gguf [--rounds 5] [--out FILE]

Default watchdog limits, the native engine in its own process, one stream running. Also: the time from a client's
hang-up inside a long prefill until the engine holds nothing of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from twinpath import __version__
from twinpath.bench import result_document
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.gateway import ProcessLauncher, Replica
from twinpath.types import ErrorEvent, Request, SamplingParams

#: Any ids will do: the prompt's sense is not measured.
PROMPT = list(range(1000, 1040))
LONG_TOKENS = 6000


def make_request(request_id: str, prompt: list[int], max_tokens: int) -> Request:
    return Request(
        request_id=request_id, prompt_ids=prompt, sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0)
    )


async def fault(replica: Replica, sent: signal.Signals, number: int) -> dict[str, float]:
    """Send the signal three tokens into a stream; milliseconds to the error event, then to a new request's token."""
    stream = replica.generate(make_request(f"{sent.name}-{number}", PROMPT, 2000))
    for _ in range(3):
        await anext(stream)
    assert replica.pid is not None
    begin_s = time.perf_counter()
    os.kill(replica.pid, sent)
    async for event in stream:
        last = event
    error_s = time.perf_counter()
    assert isinstance(last, ErrorEvent), last
    again = replica.generate(make_request(f"after-{sent.name}-{number}", PROMPT, 1))
    await anext(again)
    served_s = time.perf_counter()
    await again.aclose()
    return {"error_ms": (error_s - begin_s) * 1e3, "served_ms": (served_s - error_s) * 1e3}


async def cancel(replica: Replica, number: int) -> float:
    """Hang up inside a long prefill; milliseconds until the engine has let go."""
    prompt = [2000 + number, *range(1000, 1000 + LONG_TOKENS - 1)]
    task = asyncio.ensure_future(anext(replica.generate(make_request(f"long-{number}", prompt, 5))))
    num_steps = replica.gauges.steps
    while replica.gauges.steps < num_steps + 2:  # A heartbeat later: well inside.
        await asyncio.sleep(0.01)
    begin_s = time.perf_counter()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    while replica.num_inflight:
        await asyncio.sleep(0.0002)
    return (time.perf_counter() - begin_s) * 1e3


async def run(model: Path, rounds: int) -> dict[str, Any]:
    replica = Replica(ProcessLauncher(EngineConfig(model_path=model), SchedulerConfig()), ready_timeout_s=30)
    begin_s = time.perf_counter()
    await replica.start()
    result: dict[str, Any] = {"start_ms": (time.perf_counter() - begin_s) * 1e3}
    result["cancel_in_prefill_ms"] = [await cancel(replica, number) for number in range(rounds)]
    for sent in (signal.SIGKILL, signal.SIGSTOP):
        result[sent.name] = []
        for number in range(rounds):
            result[sent.name].append(await fault(replica, sent, number))
            await asyncio.sleep(10.5)  # A longer life than a "fast failure": the usual case, no back-off.
    await replica.stop()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = uvloop.run(run(arguments.model, arguments.rounds))
    if arguments.out is not None:
        rounds = str(arguments.rounds)
        command = ["python", "-m", "benchmarks.faults", arguments.model.name, "--rounds", rounds]
        arguments.out.write_bytes(result_document("faults", command, {"twinpath": __version__}, result))
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
