"""How good the predicted first token is: `python -m benchmarks.predictions MODEL.gguf --out FILE`.

The load of `benchmarks.lanes` over HTTP: two streams, a fresh short request every second, and long prompts back to
back. A prediction is the one that the server made at arrival (`usage.twinpath`, as in the header) and never changed; it
is held against the server's own time to the first token and against what the client saw. All requests count, from the
first on.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.lanes import NUM_STREAMS, Load
from benchmarks.requests import Streams
from benchmarks.servers import twinpath_server
from benchmarks.settings import prompt_ids
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import RequestRecord, describe, result_document
from twinpath.bench.statistics import quantile

KINDS = ("fresh", "streams", "long")


class Pair(msgspec.Struct, frozen=True):
    """Milliseconds. `at_s`: since the load began."""

    kind: str
    lane: str
    at_s: float
    predicted: float
    actual: float
    seen: float


class _Pairs(msgspec.Struct):
    """What of a result file is read again."""

    pairs: list[Pair]


async def measure(load: Load, seconds: float) -> list[Pair]:
    """The mixed load for so long; what began is finished."""
    done = asyncio.Event()
    begin_s = asyncio.get_running_loop().time()
    tasks = [asyncio.create_task(load.stream_until(done)) for _ in range(NUM_STREAMS)]
    tasks.append(asyncio.create_task(load.short_until(done)))
    longs = []
    while asyncio.get_running_loop().time() - begin_s < seconds:
        longs.append(await load.long())
    done.set()
    *streams, fresh = await asyncio.gather(*tasks)
    by_kind = {"fresh": fresh, "streams": [record for one in streams for record in one], "long": longs}
    first_s = min(record.intended_s for records in by_kind.values() for record in records)
    return [pair_of(kind, record, first_s) for kind, records in by_kind.items() for record in records]


def pair_of(kind: str, record: RequestRecord, first_s: float) -> Pair:
    promise = record.promise
    if promise is None or promise.predicted_ttft_ms is None or promise.ttft_ms is None or record.ttft_ms is None:
        raise SystemExit("the server predicted nothing: it runs without lanes")
    times = (promise.predicted_ttft_ms, promise.ttft_ms, record.ttft_ms)
    return Pair(kind, promise.lane or "", record.intended_s - first_s, *times)


def summary(pairs: list[Pair]) -> dict[str, Any]:
    """By kind, and of all that are FAST; errors are |predicted - actual| / actual."""
    groups = {kind: [pair for pair in pairs if pair.kind == kind] for kind in KINDS}
    groups["all fast"] = [pair for pair in pairs if pair.lane == "fast"]
    groups["all"] = pairs
    return {name: group_summary(group) for name, group in groups.items() if group}


def group_summary(pairs: list[Pair]) -> dict[str, Any]:
    errors = sorted(abs(pair.predicted - pair.actual) / pair.actual for pair in pairs)
    seen = [abs(pair.predicted - pair.seen) / pair.seen for pair in pairs]
    return {
        "error": describe(errors),
        #: Nearest rank, also where the sample is too small to say much.
        "error_p99": quantile(errors, 0.99),
        "error_seen_by_client": describe(seen),
        #: Geometric mean of actual / predicted.
        "bias": math.exp(sum(math.log(pair.actual / pair.predicted) for pair in pairs) / len(pairs)),
        "actual_ms": describe(pair.actual for pair in pairs),
    }


async def run(model: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    ids = prompt_ids(model)
    pairs = [pair for path in args.pool for pair in msgspec.json.decode(path.read_bytes(), type=_Pairs).pairs]
    for index in range(args.rounds):
        flags = ("--lanes", "on", "--policy", "twinpath", "--itl-budget", args.itl_budget)
        with twinpath_server(model, folder, *flags, name=f"round-{index}") as server:
            streams = Streams(server, timeout_s=600.0)
            pairs += await measure(Load(streams, ids, args.long_tokens), args.seconds)
            await streams.aclose()
    return {"summary": summary(pairs), "pairs": pairs}


def table(result: dict[str, Any]) -> list[Row]:
    rows = [["requests", "n", "first token ms, p50", "error p50", "p90", "p99", "max", "p50, client", "bias"]]
    for name, one in result["summary"].items():
        error, seen, actual = one["error"], one["error_seen_by_client"], one["actual_ms"]
        shown = (error.p50, error.p90 or error.max, one["error_p99"], error.max, seen.p50)
        cells = [f"{value:.1%}" for value in shown]
        rows.append([name, str(error.n), f"{actual.p50:.0f}", *cells, f"{one['bias']:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.predictions", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="each on a server of its own")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a round")
    parser.add_argument("--long-tokens", type=int, default=6000)
    parser.add_argument("--itl-budget", default="2.0")
    parser.add_argument("--pool", type=Path, nargs="*", default=[], help="count the pairs of these results too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = uvloop.run(run(args.model.resolve(), Path(folder), args))
    print(render(table(result)))
    if args.out:
        args.out.write_bytes(result_document("predictions", sys.orig_argv, {"twinpath": __version__}, result))


if __name__ == "__main__":
    main()
