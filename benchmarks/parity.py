"""Native step against the reference engine on the same dequantised weights: `python -m benchmarks.parity`.

Teacher-forced text, every position compared: mean KL(reference || native) and agreement of the best token outside
near-ties (reference top-2 gap < 0.1). Eight texts run in one batch over scattered pages, one to the end of the window.
Formats other than the file's own are made from its dequantised weights; a matrix whose rows a K format cannot cut into
256-value blocks takes the format that llama.cpp falls back to. JSON goes to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "tests"))  # the harness is the tests' own

from benchmarks.cpu import local_model  # noqa: E402
from benchmarks.table import Row, render  # noqa: E402
from parity.divergence import Divergence, diverge, join  # noqa: E402
from parity.k_quants import quantize  # noqa: E402
from parity.native_rows import NativeRows  # noqa: E402
from parity.reference_rows import ReferenceRows  # noqa: E402
from twinpath import __version__  # noqa: E402
from twinpath.bench import result_document  # noqa: E402
from twinpath.model.dequant import dequantize  # noqa: E402
from twinpath.model.files import files_at  # noqa: E402
from twinpath.model.spec import ModelSpec  # noqa: E402
from twinpath.model.tensors import BLOCK_LAYOUT, Weights, WeightTensor, WeightType  # noqa: E402
from twinpath.model.weights import load_weights, read_spec  # noqa: E402
from twinpath.native.library import load_library  # noqa: E402
from twinpath.text import load_text  # noqa: E402
from twinpath.types import Float32s  # noqa: E402

#: llama.cpp's choices where rows are no multiple of 256 (`tensor_type_fallback`).
_FALLBACK = {WeightType.Q4_K: WeightType.Q5_0, WeightType.Q5_K: WeightType.Q5_1, WeightType.Q6_K: WeightType.Q8_0}
_NUM_TEXTS = 8
_BATCH_CHUNK = 32
_LONG_CHUNK = 256
#: Rows whose logits are held at once.
_ROWS = 64

Hidden = list[list[Float32s]]


@dataclass(frozen=True)
class Case:
    """Texts as token ids, in lockstep chunks, and from which position on they are compared."""

    name: str
    sequences: list[list[int]]
    chunk_tokens: int
    compare_from: int


def cases(model: Path, spec: ModelSpec, num_positions: int, long_tokens: int) -> list[Case]:
    """Python's own reference text: prose and code that every machine has."""
    tokenizer = load_text(files_at(model)).tokenizer
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)), add_bos=False)
    length = -(-num_positions // _NUM_TEXTS)
    gap = (len(ids) - length) // _NUM_TEXTS
    texts = [ids[i * gap : i * gap + length] for i in range(_NUM_TEXTS)]
    found = [Case("batch", texts, _BATCH_CHUNK, 0)]
    long_tokens = min(long_tokens, spec.max_position, len(ids))
    if long_tokens:
        found.append(Case(f"to position {long_tokens}", [ids[:long_tokens]], _LONG_CHUNK, long_tokens - 1024))
    return found


def stored_as(weights: Weights, weight_type: WeightType) -> Weights:
    """Every matrix of `weights` in another format."""
    made: dict[str, WeightTensor] = {}
    for name in weights:
        tensor = weights[name]
        if tensor.rows > 1:
            kind = weight_type if tensor.cols % BLOCK_LAYOUT[weight_type][0] == 0 else _FALLBACK[weight_type]
            data = np.ascontiguousarray(quantize(dequantize(tensor), kind)).view(np.uint8)
            tensor = WeightTensor(name, kind, tensor.rows, tensor.cols, data.reshape(tensor.rows, -1))
        made[name] = tensor
    return made


def rows_from(parts: Hidden, first: int) -> Iterator[Float32s]:
    for steps in parts:
        rows = np.concatenate(steps)[first:]
        yield from (rows[i : i + _ROWS] for i in range(0, len(rows), _ROWS))


def compare(case: Case, native: NativeRows, reference: ReferenceRows, right: Hidden) -> Divergence:
    ours = native.hidden(case.sequences, case.chunk_tokens, seed=1)
    return join(
        diverge(native.head(values), reference.head(wanted))
        for values, wanted in zip(rows_from(ours, case.compare_from), rows_from(right, case.compare_from), strict=True)
    )


def measure(
    spec: ModelSpec, weights: Weights, todo: Sequence[Case], isas: Sequence[str], bits: Sequence[int]
) -> list[dict[str, Any]]:
    reference = ReferenceRows(spec, weights)
    right = {case.name: reference.hidden(case.sequences, case.chunk_tokens) for case in todo}
    found: list[dict[str, Any]] = []
    num_tokens = max(sum(len(s) + 16 for s in case.sequences) for case in todo) + 64
    for isa in isas:
        for num_bits in bits:
            native = NativeRows(spec, weights, isa, num_bits, num_tokens)  # type: ignore[arg-type]
            for case in todo:
                if num_bits == 8 and (isa != isas[0] or case is not todo[0]):
                    continue
                started_s = time.perf_counter()
                divergence = compare(case, native, reference, right[case.name])
                found.append(
                    {
                        "case": case.name,
                        "isa": native.model.isa,
                        "activation_bits": num_bits,
                        **summary(divergence),
                        "seconds": round(time.perf_counter() - started_s, 1),
                    }
                )
                print(found[-1], file=sys.stderr, flush=True)
            native.close()
    return found


def summary(divergence: Divergence) -> dict[str, Any]:
    return {
        "positions": divergence.num_positions,
        "mean_kl": divergence.mean_kl,
        "p99_kl": float(np.quantile(divergence.kl, 0.99)),
        "max_kl": float(divergence.kl.max()),
        "clear_positions": int(divergence.is_clear.sum()),
        "clear_agreement": divergence.clear_agreement,
        "agreement": float(divergence.agrees.mean()),
    }


def table(results: Sequence[dict[str, Any]]) -> list[Row]:
    rows = [["format", "case", "kernels", "bits", "positions", "mean KL", "p99 KL", "clear agree", "agree"]]
    for one in results:
        numbers = [f"{one['mean_kl']:.1e}", f"{one['p99_kl']:.1e}", f"{one['clear_agreement']:.4f}"]
        what = [one["format"], one["case"], one["isa"], str(one["activation_bits"]), str(one["positions"])]
        rows.append([*what, *numbers, f"{one['agreement']:.4f}"])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.parity", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="GGUF file or alias")
    parser.add_argument("--formats", default="file," + ",".join(WeightType), help="'file': the weights as they are")
    parser.add_argument("--isas", default=",".join(load_library().usable_isas()))
    parser.add_argument("--bits", default="16,8", help="activation bits; 8 only on the first kernel set")
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--long", type=int, default=8192, help="length of the one long text of 'file'; 0: none")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    args = parser.parse_args(argv)
    model = local_model(args.model)
    files = files_at(model)
    spec = read_spec(files)
    weights = load_weights(files, spec)
    todo = cases(model, spec, args.positions, args.long)
    results: list[dict[str, Any]] = []
    for name in args.formats.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        stored = weights if name == "file" else stored_as(weights, WeightType(name))
        chosen = todo if name == "file" else todo[:1]
        bits = [int(number) for number in args.bits.split(",")]
        results += [{"format": name, **one} for one in measure(spec, stored, chosen, args.isas.split(","), bits)]
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-parity-{model.stem.lower()}.json"
    command = ["python", "-m", "benchmarks.parity", "--model", model.name, "--formats", args.formats]
    command += ["--isas", args.isas, "--bits", args.bits, "--positions", str(args.positions), "--long", str(args.long)]
    facts = {"model": model.name, "result": results}
    path.write_bytes(result_document("parity", command, {"twinpath": __version__}, facts))
    print(render(table(results)))


if __name__ == "__main__":
    main()
