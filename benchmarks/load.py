"""Load on any OpenAI-compatible server, from outside: `python -m benchmarks.load http://127.0.0.1:8000 --clients 4`.

The first form of what becomes `twinpath bench`: a closed loop (`--clients`) or Poisson arrivals (`--rate`), one
table, one JSON file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.requests import fresh_text, served_model
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import (
    Distribution,
    LoadClient,
    RequestRecord,
    Summary,
    poisson_arrivals,
    result_document,
    run_closed,
    run_open,
    summarize,
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    parser.add_argument("url", help="http(s)://host:port")
    pattern = parser.add_mutually_exclusive_group()
    pattern.add_argument("--clients", type=int, default=1, help="closed loop: each sends its next when its last ended")
    pattern.add_argument("--rate", type=float, help="open loop: requests a second, Poisson")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--out", type=Path, help="keep the summary and every request's record as JSON")
    return parser.parse_args()


async def run(args: argparse.Namespace, model: str) -> list[RequestRecord]:
    client = LoadClient(args.url)

    async def send(index: int, intended_s: float) -> RequestRecord:
        body = {
            "model": model,
            "prompt": fresh_text(index),
            "max_tokens": args.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await client.send("/v1/completions", msgspec.json.encode(body), index=index, intended_s=intended_s)

    if args.rate:
        records = await run_open(send, poisson_arrivals(args.rate, args.requests, args.seed))
    else:
        records = await run_closed(send, num_clients=args.clients, num_requests=args.requests)
    await client.aclose()
    return records


def table(summary: Summary) -> list[Row]:
    rows = [["ms", "n", "p50", "p90", "p99", "p99.9", "max"]]
    for name in ("ttft_ms", "token_ms", "gap_ms", "latency_ms", "send_lag_ms"):
        found: Distribution | None = getattr(summary, name)
        if found is not None:
            tails = (found.p50, found.p90, found.p99, found.p999, found.max)
            rows.append([name[:-3], str(found.n), *("-" if value is None else f"{value:.2f}" for value in tails)])
    return rows


def main() -> None:
    args = parse()
    records = uvloop.run(run(args, served_model(args.url)))
    summary = summarize(records)
    print(render(table(summary)))
    tokens = f"{summary.completion_tokens} tokens out, {summary.tokens_per_s:.1f} a second"
    print(f"{summary.num_requests} requests, {summary.num_failed} failed {summary.errors or ''}; {tokens}")
    if args.out:
        body: dict[str, Any] = {"summary": summary, "records": records}
        args.out.write_bytes(
            result_document("load", ["python", "-m", "benchmarks.load", *sys.argv[1:]], {"twinpath": __version__}, body)
        )


if __name__ == "__main__":
    main()
