"""twinpath's native engine through its own contract: step plans in, sampled tokens out, no scheduler and no HTTP."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from protocol import BatchDecode, Generation, serve

from twinpath import __version__
from twinpath.contracts import Engine
from twinpath.engine.cpu import CpuEngine, CpuOptions
from twinpath.model.files import files_at
from twinpath.model.weights import load_weights, read_spec
from twinpath.types import Int32s, SamplingParams, SlotInit, StepPlan


class Twinpath:
    """Slot i owns a stretch of pages of its own; a prompt runs in as few steps as the engine allows."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        self._engine, self._settings, self._step_id = engine, settings, 0

    def describe(self) -> dict[str, Any]:
        description = self._engine.info.description
        return {"system": "twinpath", "version": __version__, "features": description, "settings": self._settings}

    def _step(
        self,
        rows: list[tuple[int, int, list[int]]],
        num_context: int,
        sample: bool = True,
        inits: tuple[SlotInit, ...] = (),
    ) -> list[int]:
        """One plan of (slot, start, tokens) rows; returns the sampled token per row."""
        info = self._engine.info
        pages_per_slot = -(-num_context // info.page_size)
        tables = np.full((len(rows), pages_per_slot), -1, np.int32)
        for index, (slot, start, tokens) in enumerate(rows):
            used = -(-(start + len(tokens)) // info.page_size)
            tables[index, :used] = slot * pages_per_slot + np.arange(used)
        self._step_id += 1
        plan = StepPlan(
            step_id=self._step_id,
            slots=_int32([slot for slot, _, _ in rows]),
            starts=_int32([start for _, start, _ in rows]),
            lengths=_int32([len(tokens) for _, _, tokens in rows]),
            sample=np.full(len(rows), sample),
            tokens=_int32([token for _, _, tokens in rows for token in tokens]),
            block_tables=tables,
            layer_begin=0,
            layer_end=info.num_layers,
            inits=inits,
        )
        self._engine.submit(plan)
        result = self._engine.poll()
        if result is None or result.failures or result.interrupted:
            raise SystemExit(f"step failed: {result}")
        return [int(token) for token in result.tokens]

    def _prefill(self, slot: int, prompt: list[int], num_tokens: int, num_context: int) -> int:
        greedy = SamplingParams(max_tokens=num_tokens, temperature=0.0)
        inits: tuple[SlotInit, ...] = (SlotInit(slot, greedy, _int32(prompt), len(prompt)),)
        limit = self._engine.info.max_step_tokens
        token = -1
        for begin in range(0, len(prompt), limit):
            last = begin + limit >= len(prompt)
            sampled = self._step([(slot, begin, prompt[begin : begin + limit])], num_context, last, inits)
            token, inits = (sampled[0] if last else -1), ()
        return token

    def generate(self, prompt: list[int], num_tokens: int) -> Generation:
        num_context = len(prompt) + num_tokens
        begin = time.perf_counter()
        token = self._prefill(0, prompt, num_tokens, num_context)
        before = time.perf_counter()
        ttft_ms, token_ms, tokens = (before - begin) * 1e3, [], [token]
        for position in range(len(prompt), num_context - 1):
            [token] = self._step([(0, position, [token])], num_context)
            now = time.perf_counter()
            token_ms.append((now - before) * 1e3)
            before = now
            tokens.append(token)
        return Generation(ttft_ms, token_ms, tokens)

    def decode_batch(self, prompts: list[list[int]], num_tokens: int) -> BatchDecode:
        num_context = max(len(prompt) for prompt in prompts) + num_tokens
        last = [self._prefill(slot, prompt, num_tokens, num_context) for slot, prompt in enumerate(prompts)]
        tokens, step_ms = [[token] for token in last], []
        for step in range(num_tokens - 1):
            begin = time.perf_counter()
            rows = [(slot, len(prompt) + step, [last[slot]]) for slot, prompt in enumerate(prompts)]
            last = self._step(rows, num_context)
            step_ms.append((time.perf_counter() - begin) * 1e3)
            for slot, token in enumerate(last):
                tokens[slot].append(token)
        return BatchDecode(step_ms, tokens)


def _int32(values: list[int]) -> Int32s:
    return np.asarray(values, np.int32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--activation-bits", type=int, choices=(8, 16), default=16)
    args = parser.parse_args()
    settings = {"threads": args.threads, "isa": args.isa, "activation_bits": args.activation_bits}
    options = CpuOptions(
        threads=args.threads,
        isa=args.isa,
        activation_bits=args.activation_bits,
        max_model_len=4096,
        max_step_tokens=512,
    )
    begin = time.perf_counter()
    files = files_at(args.model)
    spec = read_spec(files)
    engine = CpuEngine(spec, load_weights(files, spec), options)
    serve(Twinpath(engine, settings), time.perf_counter() - begin)
    engine.close()


if __name__ == "__main__":
    main()
