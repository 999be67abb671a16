"""A real model's greedy tokens on the card against the CPU reference (float32) on the same file.

    python -m benchmarks.gpu_parity --model SmolLM2-135M-Instruct.Q4_1.gguf --json out.json

Where the two part, the line says by how much the reference preferred its token: 16-bit arithmetic may only part at a
near-tie. What follows is another text, so a prompt is compared up to there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_engine import DEVICE
from twinpath.contracts import Engine
from twinpath.engine.cuda.engine import CudaEngine
from twinpath.engine.cuda.memory import CudaOptions
from twinpath.engine.cuda.weights import pack_weights
from twinpath.engine.reference import ReferenceEngine
from twinpath.engine.reference_memory import ReferenceOptions
from twinpath.model.files import files_at
from twinpath.model.weights import load_weights, read_spec
from twinpath.text import load_text
from twinpath.types import SamplingParams, SlotInit, StepPlan

NUM_PROMPTS, NUM_TOKENS, PROMPT_TOKENS = 20, 64, 48
#: A difference of log-probabilities below this is a near-tie.
NEAR_TIE = 0.1
_PAGES = 8


@dataclass(frozen=True)
class Answer:
    """Tokens, and by how much each beat the second best."""

    tokens: list[int]
    margins: list[float]


def answer_all(engine: Engine, prompts: Sequence[Sequence[int]], batch: int) -> list[Answer]:
    """Greedy answers, `batch` prompts in one step."""
    answers: list[Answer] = []
    for first in range(0, len(prompts), batch):
        answers += _answer(engine, prompts[first : first + batch])
    return answers


def _answer(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Answer]:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=2)
    answers = [Answer([], []) for _ in prompts]
    tables = np.arange(len(prompts) * _PAGES, dtype=np.int32).reshape(len(prompts), _PAGES)
    for step in range(NUM_TOKENS):
        news = [list(p) if step == 0 else [a.tokens[-1]] for p, a in zip(prompts, answers, strict=True)]
        starts = [0 if step == 0 else len(p) + step - 1 for p in prompts]
        plan = StepPlan(
            step_id=step,
            slots=np.arange(len(prompts), dtype=np.int32),
            starts=np.array(starts, np.int32),
            lengths=np.array([len(new) for new in news], np.int32),
            sample=np.ones(len(prompts), bool),
            tokens=np.array([token for new in news for token in new], np.int32),
            block_tables=tables,
            layer_begin=0,
            layer_end=engine.info.num_layers,
            inits=tuple(SlotInit(i, sampling, np.array(p, np.int32), len(p)) for i, p in enumerate(prompts))
            if step == 0
            else (),
        )
        engine.submit(plan)
        result = engine.poll()
        assert result is not None and not result.failures, result
        for index, answer in enumerate(answers):
            (entry,) = result.logprobs[index]
            answer.tokens.append(entry.token_id)
            answer.margins.append(entry.top[0][1] - entry.top[1][1])
    return answers


def compare(name: str, got: Sequence[Answer], right: Sequence[Answer]) -> dict[str, Any]:
    """How many prompts agree to their end, and the margin at which each of the others parts."""
    parted = []
    for index, (one, other) in enumerate(zip(got, right, strict=True)):
        where = next((i for i in range(NUM_TOKENS) if one.tokens[i] != other.tokens[i]), None)
        if where is not None:
            parted.append({"prompt": index, "token": where, "reference_margin": round(other.margins[where], 5)})
    return {
        "run": name,
        "prompts": len(right),
        "tokens": NUM_TOKENS,
        "equal": len(right) - len(parted),
        "parted_at_near_ties": all(entry["reference_margin"] < NEAR_TIE for entry in parted),
        "parted": parted,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    files = files_at(arguments.model)
    spec, text = read_spec(files), load_text(files)
    weights = load_weights(files, spec)
    texts = [topics[key] for key in sorted(topics) if len(topics[key]) > 2000][:NUM_PROMPTS]
    prompts = [text.tokenizer.encode(t)[10 : 10 + PROMPT_TOKENS] for t in texts]
    options = ReferenceOptions(device="cpu", dtype="float32", max_slots=32, max_step_tokens=1024, max_model_len=256)
    reference = ReferenceEngine(spec, weights, options)
    right = answer_all(reference, prompts, NUM_PROMPTS)
    reference.close()
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        packed = pack_weights(spec, weights, DEVICE, dtype, 256)
        graphs = dtype != torch.float32
        engine = CudaEngine(packed, CudaOptions(max_slots=32, max_step_tokens=1024, max_model_len=256, graphs=graphs))
        for batch in (NUM_PROMPTS, 1) if graphs else (NUM_PROMPTS,):
            name = f"{str(dtype).removeprefix('torch.')}, batch {batch}"
            rows.append(compare(name, answer_all(engine, prompts, batch), right))
            print(json.dumps(rows[-1]), flush=True)
        engine.close()
    report = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "model": arguments.model.name}
    smallest = sorted(margin for answer in right for margin in answer.margins)[:5]
    report |= {"spec": asdict(spec)["family"], "smallest_margins": smallest, "rows": rows}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
