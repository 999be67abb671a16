"""In process.

Single-stream decode, time to first token, and batch steps, in rounds where every contestant runs once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.settings import Settings, prompt_ids
from benchmarks.table import Row, ratio_cells
from benchmarks.worker import Worker, WorkerError
from twinpath.bench import describe, paired_ratio

NUM_PROMPT = 128
NUM_DECODE = 128
NUM_BATCH_STEPS = 24
SINGLE_METRICS = ("ttft_ms", "decode_ms")
BATCH_SIZES = (2, 4)
BATCH_METRICS = tuple(f"batch{size}_ms" for size in BATCH_SIZES)

#: What one contestant did in one round.
Values = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One contestant of a lineup; `form` names another format of the same weights."""

    system: str
    threads: int
    flags: tuple[str, ...] = ()
    form: str = ""


def llama(threads: int, flash: str, form: str = "") -> Entry:
    return Entry("llama_cpp", threads, ("--flash", flash), form)


def lineup_single(settings: Settings) -> list[Entry]:
    """twinpath at each thread count; each peer at its best: flash attention helps prefill and hurts decode, so both."""
    most = max(settings.threads)
    peers = [llama(most, "off"), llama(most, "on"), Entry("openvino", most)]
    return [*(Entry("twinpath", threads) for threads in settings.threads), *(peers if settings.peers else [])]


def lineup_16bit(settings: Settings) -> list[Entry]:
    """twinpath on the model as it is, llama.cpp on its F16 and BF16 forms: whose answers equal fp32's there."""
    most = max(settings.threads)
    peers = [llama(most, flash, form) for form in ("F16", "BF16") for flash in ("off", "on")]
    return [Entry("twinpath", most), *(peers if settings.peers else [])]


def lineup_batch(settings: Settings) -> list[Entry]:
    """All threads for everybody, and llama.cpp without flash attention, which is slower in batches too."""
    most = max(settings.threads)
    return [Entry("twinpath", most), *([llama(most, "off"), Entry("openvino", most)] if settings.peers else [])]


def start(
    settings: Settings, entries: Sequence[Entry], stack: ExitStack, warm_up: Callable[[Worker], object]
) -> tuple[list[Worker], dict[str, str]]:
    """Load and warm everybody. A peer that cannot read or run the file is left out, with its reason; twinpath must."""
    workers, absent = [], {}
    for entry in entries:
        model = settings.form(entry.form) if entry.form else settings.model
        try:
            worker = settings.worker(entry.system, entry.threads, *entry.flags, model=model, form=entry.form)
            warm_up(stack.enter_context(worker))
        except WorkerError as error:
            if entry.system == "twinpath":
                raise
            absent[entry.system] = str(error).strip().splitlines()[-1]
            continue
        workers.append(worker)
    return workers, absent


def measure_single(worker: Worker, ids: list[int]) -> Values:
    """One stream of one contestant: a value per metric, the raw gaps, the tokens, and how busy others were."""
    single = worker.ask("generate", prompt=ids[:NUM_PROMPT], num_tokens=NUM_DECODE)
    return {
        "decode_ms": statistics.median(single["token_ms"]),
        "ttft_ms": single["ttft_ms"],
        "gaps_ms": single["token_ms"],
        "tokens": single["token_ids"],
        "others_percent": single["others_percent"],
    }


def measure_batch(worker: Worker, ids: list[int]) -> Values:
    """Steps of 2 and of 4 different sequences."""
    values: Values = {"gaps_ms": [], "tokens": [], "others_percent": 0.0}
    for size in BATCH_SIZES:
        prompts = [ids[7 * index : 7 * index + NUM_PROMPT] for index in range(size)]
        batch = worker.ask("decode_batch", prompts=prompts, num_tokens=NUM_BATCH_STEPS)
        values[f"batch{size}_ms"] = statistics.median(batch["step_ms"])
        values["gaps_ms"] += batch["step_ms"]
        values["tokens"] += [token for tokens in batch["token_ids"] for token in tokens]
        values["others_percent"] = max(values["others_percent"], batch["others_percent"])
    return values


def run(settings: Settings) -> dict[str, Any]:
    """One stream, everybody on the same file."""
    return compete(settings, lineup_single(settings), measure_single, SINGLE_METRICS)


def run16(settings: Settings) -> dict[str, Any]:
    """One stream, against llama.cpp's 16-bit formats."""
    return compete(settings, lineup_16bit(settings), measure_single, SINGLE_METRICS)


def run_batch(settings: Settings) -> dict[str, Any]:
    """Several streams in one step, everybody on the same file."""
    return compete(settings, lineup_batch(settings), measure_batch, BATCH_METRICS)


def compete(
    settings: Settings,
    entries: Sequence[Entry],
    measure: Callable[[Worker, list[int]], Values],
    metrics: Sequence[str],
) -> dict[str, Any]:
    """All rounds; the order turns by one each round so that nobody always follows the same neighbour."""
    ids = prompt_ids(settings.model)
    with ExitStack() as stack:
        # Warm: pages touched, pipelines compiled.
        workers, absent = start(settings, entries, stack, lambda worker: measure(worker, ids))
        rounds: list[dict[str, Values]] = []
        for index in range(settings.rounds):
            turn = index % len(workers)
            order = workers[turn:] + workers[:turn]
            rounds.append({worker.name: measure(worker, ids) for worker in order})
    names = [worker.name for worker in workers]
    return {
        "metrics": metrics,
        "absent": absent,
        "rows": [summarize(worker, [one[worker.name] for one in rounds], metrics) for worker in workers],
        "ratios": ratios(names, rounds, metrics),
        "answers": {name: agreement(rounds[0][names[0]], rounds[0][name]) for name in names[1:]},
    }


def summarize(worker: Worker, values: Sequence[Values], metrics: Sequence[str]) -> dict[str, Any]:
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
    names: Sequence[str], rounds: Sequence[dict[str, Values]], metrics: Sequence[str]
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
    rows = [["in process, ms", *(f"{metric[:-3]} p50 (min-max)" for metric in result["metrics"]), "p99", "others %"]]
    for row in result["rows"]:
        found = [row[metric] for metric in result["metrics"]]
        cells = [f"{one.p50:.2f} ({one.min:.2f}-{one.max:.2f})" for one in found]
        tail = row["gap_ms"].p99 if "decode_ms" in result["metrics"] else None
        p99 = "-" if tail is None else f"{tail:.1f}"
        rows.append([row["name"], *cells, p99, str(row["others_percent_max"])])
    for metric, peers in result["ratios"].items():
        for found in peers.values():
            rows.append([f"{metric}: {found['ours']} / {found['theirs']}", *ratio_cells(found["ratio"])])
    for name, same in result["answers"].items():
        rows.append([f"leading greedy tokens equal to {name}", f"{same['equal_leading_tokens']} of {same['of']}"])
    rows += [[f"{name} is left out", reason[:60]] for name, reason in result["absent"].items()]
    return rows
