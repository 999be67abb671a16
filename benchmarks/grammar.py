"""Grammars: the two engines compared, what a constrained token costs, and what a first compile does to other streams.

python -m benchmarks.grammar engines MODEL --suite DIR     # JSON-Schema-Test-Suite, tests/draft2020-12
python -m benchmarks.grammar tokens MODEL
python -m benchmarks.grammar compile MODEL
python -m benchmarks.hostile_schemas MODEL             # schemas that mean harm, beside a stream
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grammar_engines import compare
from twinpath.bench import describe_machine
from twinpath.config import EngineConfig, SchedulerConfig
from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.gateway import ProcessLauncher, Replica
from twinpath.grammar import GrammarCompiler, GrammarConstraint, Vocabulary, schema_grammar
from twinpath.model.files import files_at
from twinpath.model.weights import load_weights, read_spec
from twinpath.scheduler import make_scheduler
from twinpath.text import load_text
from twinpath.text.text_model import TextModel
from twinpath.types import Grammar, Request, SamplingParams, TokensEvent

#: Budgets of the answers under a grammar: the nearer the end, the more often it looks for a way there.
MAX_TOKENS = (256, 1024)
#: The unconstrained answer is cut here; the other one ends by itself before.
NUM_FREE_TOKENS = 64
NUM_ROUNDS = 14
#: Half of the answers are drawn: then no token is known to be legal before its mask is made.
TEMPERATURES = (0.0, 0.8)
PROMPT = "Write a list of people with their names, ages and hobbies, as JSON."
#: An answer to it goes on as long as it may.
PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "role": {"enum": ["student", "teacher", "engineer", "artist"]},
            "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        },
        "required": ["name", "age", "role", "hobbies"],
        "additionalProperties": False,
    },
}
#: One string: next to nothing in it is forced.
STORY = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 400, "maxLength": 2000}},
    "required": ["story"],
    "additionalProperties": False,
}


def long_schema(seed: int) -> dict[str, Any]:
    """200 lines when printed with an indent; another one for every seed, so that no cache knows it."""
    fields: dict[str, Any] = {}
    for index in range(24):
        kinds: list[dict[str, Any]] = [
            {"type": "string", "maxLength": 20 + index},
            {"type": "integer", "minimum": seed % 97, "maximum": 1000 + index},
            {"type": "array", "items": {"type": "number"}, "maxItems": 3 + index},
            {"type": "object", "properties": {f"inner_{index}": {"enum": ["a", "b", str(seed)]}}},
        ]
        fields[f"field_{seed}_{index}"] = kinds[index % 4]
    return {"type": "object", "properties": fields, "required": list(fields)[::2], "additionalProperties": False}


class Bench:
    """The native engine with its scheduler, driven as the engine process does."""

    def __init__(self, model: Path) -> None:
        files = files_at(model)
        self.text: TextModel = load_text(files)
        spec = read_spec(files)
        self.engine = CpuEngine(spec, load_weights(files, spec), CpuOptions(max_slots=8))
        self.scheduler = make_scheduler(SchedulerConfig(), self.engine.info, time.monotonic)
        tokens = self.text.tokenizer
        self.vocabulary = Vocabulary(tokens, spec.vocab_size, self.text.stop_token_ids, tokens.encode)
        self.compiler = GrammarCompiler(self.vocabulary)
        self.prompt_ids = self.text.encode_chat([{"role": "user", "content": PROMPT}])
        self._num_requests = 0

    def run(self, grammar: Grammar | None, sampling: SamplingParams) -> list[tuple[float, int]]:
        """Of each decode step its milliseconds, plan to commit, and the tokens that it gave."""
        self._num_requests += 1
        request = Request(
            request_id=str(self._num_requests), prompt_ids=self.prompt_ids, sampling=sampling, grammar=grammar
        )
        constraint = None
        if grammar is not None:
            outcome: list[Any] = []
            self.compiler.prepare(request, outcome.append)
            while not outcome:
                time.sleep(0.001)
            (constraint,) = outcome
            assert isinstance(constraint, GrammarConstraint), constraint
        self.scheduler.add(request, constraint)
        steps = []
        while self.scheduler.num_running or self.scheduler.num_waiting:
            begin = time.perf_counter()
            plan = self.scheduler.plan()
            assert plan is not None
            self.engine.submit(plan)
            self.scheduler.fill_masks()
            result = self.engine.poll()
            assert result is not None
            events = self.scheduler.commit(result)
            elapsed_ms = (time.perf_counter() - begin) * 1e3
            steps.append((elapsed_ms, sum(len(e.token_ids) for e in events if isinstance(e, TokensEvent))))
        return steps[1:]


def measure_tokens(model: Path) -> dict[str, Any]:
    """Rounds of both in turn, each with a seed of its own; the medians, of the ratio within rounds too."""
    bench = Bench(model)
    rounds: dict[str, list[dict[str, float]]] = {}
    for (name, schema), temperature, max_tokens in itertools.product(
        {"people": PEOPLE, "story": STORY}.items(), TEMPERATURES, MAX_TOKENS
    ):
        grammar = schema_grammar(schema, strict=True, param="schema")
        rows = [_round(bench, grammar, max_tokens, temperature, seed) for seed in range(NUM_ROUNDS + 1)]
        rounds[f"{name}, temperature {temperature}, {max_tokens} tokens"] = rows[1:]
    median = {
        case: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for case, rows in rounds.items()
    }
    return {"rounds": rounds, "median": median, "engine": bench.engine.info.description}


def _round(bench: Bench, grammar: Grammar, max_tokens: int, temperature: float, seed: int) -> dict[str, float]:
    free = bench.run(None, SamplingParams(max_tokens=NUM_FREE_TOKENS, temperature=temperature, seed=seed))
    held = bench.run(grammar, SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed))
    while held and sum(num_tokens for _, num_tokens in held) > len(free):  # At the same positions.
        held.pop()
    num_tokens = sum(num for _, num in held)
    free_ms = statistics.fmean(ms for ms, _ in free[:num_tokens])
    held_ms = sum(ms for ms, _ in held) / num_tokens
    return {
        "free_ms": free_ms,
        "held_ms": held_ms,
        "ratio": held_ms / free_ms,
        "num_tokens": num_tokens,
        "num_steps": len(held),
    }


async def measure_compile(model: Path, num_rounds: int = 5) -> dict[str, Any]:
    """Gaps between the tokens of a stream while short requests come beside it, without and with new grammars."""
    replica = Replica(ProcessLauncher(EngineConfig(model_path=model), SchedulerConfig()), max_waiting=64)
    await replica.start()
    text = load_text(files_at(model))
    prompt_ids = text.encode_chat([{"role": "user", "content": PROMPT}])
    found: dict[str, list[float]] = {"alone": [], "beside": [], "beside_new_grammars": []}
    seed = 1000
    for _ in range(num_rounds):
        for kind, gaps in found.items():
            others = None if kind == "alone" else asyncio.create_task(_beside(replica, prompt_ids, seed, kind))
            gaps += await _stream(replica, prompt_ids, f"{kind}-{seed}")
            seed += 100
            if others is not None:
                await others
    await replica.stop()
    return {kind: {f"p{p}_ms": float(np.percentile(gaps, p)) for p in (50, 99)} for kind, gaps in found.items()}


async def _stream(replica: Replica, prompt_ids: list[int], request_id: str) -> list[float]:
    sampling = SamplingParams(max_tokens=300, temperature=0.0)
    times = []
    async for event in replica.generate(Request(request_id=request_id, prompt_ids=prompt_ids, sampling=sampling)):
        if isinstance(event, TokensEvent):
            times.append(time.perf_counter())
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)]


async def _beside(replica: Replica, prompt_ids: list[int], seed: int, kind: str) -> None:
    """Five one-token answers, each with a grammar that was never seen or with none; the prompt is in the cache."""
    for index in range(5):
        await asyncio.sleep(0.1)
        grammar = None
        if kind == "beside_new_grammars":
            grammar = schema_grammar(long_schema(seed + index), strict=True, param="schema")
        request = Request(
            request_id=f"{kind}-{seed}-{index}",
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            grammar=grammar,
        )
        async for _ in replica.generate(request):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=["engines", "tokens", "compile"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.piece == "engines":
        found = compare(load_text(files_at(arguments.model)), arguments.suite, [PEOPLE, *map(long_schema, range(8))])
    elif arguments.piece == "tokens":
        found = measure_tokens(arguments.model)
    else:
        found = asyncio.run(measure_compile(arguments.model))
    print(json.dumps(found.get("median", found), indent=1))
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"machine": describe_machine(), "piece": arguments.piece, **found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
