"""Function calls of a small model, demanded by grammar: does every answer parse and fit its schema, streamed or not?

    python -m benchmarks.bfcl FOLDER [--model MODEL.gguf | --url http://127.0.0.1:8000] [--cases 100] [--out FILE]

FOLDER holds the files of the `bfcl-eval` package (`BFCL_v4_simple_python.json`, ..., `possible_answer/`). Every case is
asked twice at temperature 0, whole and streamed, with `tool_choice: required` and `max_tokens: 512`. The score, right
calls by BFCL's own rules, is the model's matter; that all calls parse, fit and agree in both modes is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai

from benchmarks.bfcl_cases import FILES, Call, Case, is_right, load_cases
from benchmarks.servers import twinpath_server
from benchmarks.table import render
from twinpath.bench import describe_machine

MAX_TOKENS = 512
#: Counters of the engine come with its heartbeat.
HEARTBEAT_S = 2.0


@dataclass
class Answer:
    """The calls of one answer, or what is wrong with it."""

    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""
    fault: str = ""


def read_answer(message: Any, finish_reason: str, case: Case) -> Answer:
    """Parse every call and check it against its tool's schema."""
    answer = Answer(finish_reason=finish_reason)
    if not message.tool_calls:
        answer.fault = "no call"
    for call in message.tool_calls or ():
        schema = case.parameters(call.function.name)
        try:
            arguments = json.loads(call.function.arguments)
        except ValueError:
            answer.fault = "arguments are not JSON"
            break
        if schema is None or not jsonschema_rs.is_valid(schema, arguments):
            answer.fault = "unknown tool" if schema is None else "arguments do not fit the schema"
            break
        answer.calls.append((call.function.name, arguments))
    return answer


async def ask(client: openai.AsyncOpenAI, model: str, case: Case, *, streamed: bool) -> Answer:
    request: dict[str, Any] = {
        "model": model,
        "messages": case.messages,
        "tools": case.tools,
        "tool_choice": "required",
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    if not streamed:
        choice: Any = (await client.chat.completions.create(**request)).choices[0]
    else:
        state: Any = openai.lib.streaming.chat.ChatCompletionStreamState()
        async for chunk in await client.chat.completions.create(**request, stream=True):
            state.handle_chunk(chunk)
        choice = state.current_completion_snapshot.choices[0]
    return read_answer(choice.message, choice.finish_reason, case)


async def run_category(client: openai.AsyncOpenAI, cases: list[Case], num_clients: int) -> dict[str, Any]:
    model = (await client.models.list()).data[0].id
    slots = asyncio.Semaphore(num_clients)

    async def both(case: Case) -> tuple[Answer, Answer]:
        async with slots:
            whole = await ask(client, model, case, streamed=False)
            return whole, await ask(client, model, case, streamed=True)

    began_s = time.perf_counter()
    answers = await asyncio.gather(*map(both, cases))
    faults = [(case.case_id, a.fault) for case, pair in zip(cases, answers, strict=True) for a in pair if a.fault]
    return {
        "cases": len(cases),
        "valid_whole": sum(not whole.fault for whole, _ in answers),
        "valid_streamed": sum(not streamed.fault for _, streamed in answers),
        "equal": sum(whole == streamed for whole, streamed in answers),
        "right": sum(is_right(whole.calls, case) for case, (whole, _) in zip(cases, answers, strict=True)),
        "finish_reasons": dict(Counter(whole.finish_reason for whole, _ in answers)),
        "faults": faults,
        "elapsed_s": round(time.perf_counter() - began_s, 1),
    }


@contextmanager
def server_url(args: argparse.Namespace) -> Iterator[str]:
    if args.url:
        yield args.url
        return
    with tempfile.TemporaryDirectory() as folder, twinpath_server(args.model, Path(folder)) as server:
        yield server.url


def num_closed_out(url: str) -> int:
    """Answers so far that the grammar had to complete since their tokens ran out."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    [count] = [line.split()[-1] for line in lines if line.startswith("twinpath:grammar_closed_out_total")]
    return int(float(count))


async def run(args: argparse.Namespace, url: str) -> dict[str, Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY", timeout=600, max_retries=0) as client:
        results = {}
        for category in args.categories.split(","):
            before = num_closed_out(url)
            results[category] = await run_category(client, load_cases(args.folder, category, args.cases), args.clients)
            await asyncio.sleep(HEARTBEAT_S)
            results[category]["closed_out"] = num_closed_out(url) - before
            print(category, results[category], flush=True)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=Path("smollm2-135m"), help="as for `twinpath serve`")
    parser.add_argument("--url", help="a server that is up, instead")
    parser.add_argument("--cases", type=int, default=100, help="of each category")
    parser.add_argument("--categories", default=",".join(FILES))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with server_url(args) as url:
        results = asyncio.run(run(args, url))
    columns = ("cases", "valid_whole", "valid_streamed", "equal", "right", "closed_out", "elapsed_s")
    print(render([["", *columns], *([name, *(str(row[c]) for c in columns)] for name, row in results.items())]))
    if args.out:
        args.out.write_text(json.dumps({"machine": describe_machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
