"""In process.

Single-stream decode, time to first token, and batch steps, in rounds where every contestant runs once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row, ratio_cells
from benchmarks.worker import Worker
from twinpath.bench import describe, paired_ratio

NUM_PROMPT = 128
NUM_DECODE = 128
NUM_BATCH_STEPS = 24
SINGLE_METRICS = ("decode_ms", "ttft_ms")
BATCH_SIZES = (2, 4)


def contestants(settings: Settings, stack: ExitStack) -> list[Worker]:
    """twinpath at each thread count; each peer at its best: flash attention helps prefill and hurts decode, so both."""
    workers = [stack.enter_context(settings.worker("twinpath", threads)) for threads in settings.threads]
    if settings.peers is not None:
        threads = max(settings.threads)
        for flash in ("off", "on"):
            workers.append(stack.enter_context(settings.worker("llama_cpp", threads, "--flash", flash)))
        workers.append(stack.enter_context(settings.worker("openvino", threads)))
    return workers


def contestants16(settings: Settings, stack: ExitStack) -> list[Worker]:
    """twinpath on the model as it is, llama.cpp on its F16 and BF16 forms.

    The formats whose answers equal fp32's there.
    """
    threads = max(settings.threads)
    workers = [stack.enter_context(settings.worker("twinpath", threads))]
    for form in ("F16", "BF16"):
        for flash in ("off", "on"):
            name = f"llama_cpp {form} {threads}t flash {flash}"
            worker = settings.worker("llama_cpp", threads, "--flash", flash, model=settings.form(form), name=name)
            workers.append(stack.enter_context(worker))
    return workers


def measure(worker: Worker, ids: list[int], batch_sizes: Sequence[int]) -> dict[str, Any]:
    """One round of one contestant.

    A value per metric, the raw gaps, the tokens, and how busy others kept the machine.
    """
    single = worker.ask("generate", prompt=ids[:NUM_PROMPT], num_tokens=NUM_DECODE)
    values: dict[str, Any] = {
        "decode_ms": statistics.median(single["token_ms"]),
        "ttft_ms": single["ttft_ms"],
        "gaps_ms": single["token_ms"],
        "tokens": single["token_ids"],
    }
    others = [single["others_percent"]]
    for size in batch_sizes:
        prompts = [ids[7 * index : 7 * index + NUM_PROMPT] for index in range(size)]
        batch = worker.ask("decode_batch", prompts=prompts, num_tokens=NUM_BATCH_STEPS)
        values[f"batch{size}_ms"] = statistics.median(batch["step_ms"])
        others.append(batch["others_percent"])
    return {**values, "others_percent": max(others)}


def run(settings: Settings) -> dict[str, Any]:
    """Everybody on the same file."""
    with ExitStack() as stack:
        return compete(settings, contestants(settings, stack), BATCH_SIZES)


def run16(settings: Settings) -> dict[str, Any]:
    """Against llama.cpp's 16-bit formats."""
    with ExitStack() as stack:
        return compete(settings, contestants16(settings, stack), ())


def compete(settings: Settings, workers: list[Worker], batch_sizes: Sequence[int]) -> dict[str, Any]:
    """All rounds; the order turns by one each round so that nobody always follows the same neighbour."""
    ids = prompt_ids(settings.model)
    for worker in workers:  # warm: pages touched, pipelines compiled
        worker.ask("generate", prompt=ids[:NUM_PROMPT], num_tokens=8)
        if batch_sizes:
            worker.ask("decode_batch", prompts=[ids[:NUM_PROMPT]] * 4, num_tokens=4)
    rounds: list[dict[str, dict[str, Any]]] = []
    for index in range(settings.rounds):
        turn = index % len(workers)
        order = workers[turn:] + workers[:turn]
        rounds.append({worker.name: measure(worker, ids, batch_sizes) for worker in order})
    metrics = (*SINGLE_METRICS, *(f"batch{size}_ms" for size in batch_sizes))
    names = [worker.name for worker in workers]
    return {
        "metrics": metrics,
        "rows": [summarize(worker, [one[worker.name] for one in rounds], metrics) for worker in workers],
        "ratios": ratios(names, rounds, metrics),
        "answers": {name: agreement(rounds[0][names[0]], rounds[0][name]) for name in names[1:]},
    }


def summarize(worker: Worker, values: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, Any]:
    gaps = [gap for value in values for gap in value["gaps_ms"]]
    return {
        "name": worker.name,
        "contestant": worker.description,
        "gap_ms": describe(gaps),
        **{metric: describe([value[metric] for value in values]) for metric in metrics},
        "rounds": [{metric: round(value[metric], 3) for metric in metrics} for value in values],
        "others_percent_max": max(value["others_percent"] for value in values),
    }


def ratios(
    names: Sequence[str], rounds: Sequence[dict[str, dict[str, Any]]], metrics: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Per metric and peer: twinpath's best thread count over that peer, paired by round.

    `llama.cpp` is its better setting.
    """
    found: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        series = {name: [one[name][metric] for one in rounds] for name in names}
        ours = _best(series, "twinpath")
        for peer in ("llama_cpp", "openvino"):
            if theirs := _best(series, peer):
                ratio = paired_ratio(series[ours], series[theirs])
                found.setdefault(metric, {})[peer] = {"ours": ours, "theirs": theirs, "ratio": ratio}
    return found


def _best(series: dict[str, list[float]], system: str) -> str:
    """The configuration of `system` with the lowest median; empty when there is none."""
    names = [name for name in series if name.split()[0] == system]
    return min(names, key=lambda name: statistics.median(series[name]), default="")


def agreement(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """How many leading greedy tokens are the same."""
    pairs = list(zip(ours["tokens"], theirs["tokens"], strict=False))
    same = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return {"equal_leading_tokens": same, "of": len(pairs)}


def table(result: dict[str, Any]) -> list[Row]:
    batches = [metric for metric in result["metrics"] if metric not in SINGLE_METRICS]
    rows = [["in process", "TTFT128 ms", "decode p50", "p99", *batches, "others %"]]
    for row in result["rows"]:
        gap, ttft = row["gap_ms"], row["ttft_ms"]
        cells = [f"{row[metric].p50:.2f}" for metric in batches]
        p99 = "-" if gap.p99 is None else f"{gap.p99:.1f}"
        first = f"{ttft.p50:.0f} ({ttft.min:.0f}-{ttft.max:.0f})"
        rows.append([row["name"], first, f"{gap.p50:.2f}", p99, *cells, str(row["others_percent_max"])])
    for metric, peers in result["ratios"].items():
        for found in peers.values():
            rows.append([f"{metric}: {found['ours']} / {found['theirs']}", *ratio_cells(found["ratio"])])
    for name, same in result["answers"].items():
        rows.append([f"leading greedy tokens equal to {name}", f"{same['equal_leading_tokens']} of {same['of']}"])
    return rows
