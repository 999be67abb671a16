"""`make bench`: the CPU comparison, whole or by piece. Tables last, one JSON file per piece in `benchmarks/results/`.

make bench                                       every piece; twinpath alone if no peers are installed
make bench ARGS="--with-peers"                   create .venv-peers first (llama-cpp-python is compiled: minutes)
make bench ARGS="steps --model FILE.gguf"        one piece, about a minute or two
make bench ARGS="steps --formats Q8_0,Q4_0"      also on other forms of the same weights
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import answers, footprint, http_cost, over_http, prefix, steps
from benchmarks.peers import LLAMA_CMAKE_ARGS, find_peers, install_peers
from benchmarks.settings import ROOT, Settings
from benchmarks.table import Row, render
from twinpath import __version__
from twinpath.bench import result_document

Piece = tuple[Callable[[Settings], Any], Callable[[dict[str, Any]], list[Row]], str]

PIECES: dict[str, Piece] = {
    "steps": (steps.run, steps.table, "in process: time to first token and decode, against the peers"),
    "batch": (steps.run_batch, steps.table, "in process: steps of 2 and 4 streams"),
    "steps16": (steps.run16, steps.table, "steps against llama.cpp's F16 and BF16"),
    "http": (over_http.run, over_http.table, "streams over HTTP against llama-cpp-python's server"),
    "busy": (over_http.run_busy, over_http.table, "streams over HTTP beside one busy process"),
    "cost": (http_cost.run, http_cost.table, "what HTTP adds to the engine"),
    "prefix": (prefix.run, prefix.table, "second turn after 2,000 tokens"),
    "memory": (footprint.run, footprint.table, "PSS of the process tree"),
    "startup": (footprint.run_startup, footprint.startup_table, "seconds to ready"),
    "answers": (answers.run, answers.table, "is the capital of France Paris?"),
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    pieces = "\n".join(f"{name:8} {help_}" for name, (_, _, help_) in PIECES.items())
    parser.add_argument("pieces", nargs="*", metavar="piece", help=pieces + "\ndefault: all")
    parser.add_argument("--model", default="smollm2-135m", help="GGUF file, or an alias, which is fetched once")
    parser.add_argument("--rounds", type=int, default=7, help="paired rounds (default 7)")
    parser.add_argument("--threads", default="1,2", help="thread counts to try (default 1,2)")
    parser.add_argument(
        "--isa", choices=sorted(LLAMA_CMAKE_ARGS), default="auto", help="hold everybody back to a kernel set"
    )
    parser.add_argument("--formats", default="", help="also run the pieces on these forms of the weights, as Q8_0,Q4_0")
    parser.add_argument(
        "--formats-dir", type=Path, default=ROOT.parent / "build" / "formats", help="where they are kept"
    )
    parser.add_argument("--with-peers", action="store_true", help="create the peers' environment when it is missing")
    parser.add_argument("--peers", type=Path, help="the peers' environment (default .venv-peers, .venv-peers-avx2)")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder for the JSON files")
    args = parser.parse_args(argv)
    unknown = [name for name in args.pieces if name not in PIECES]
    if unknown:
        parser.error(f"no piece {unknown[0]!r}; there are {', '.join(PIECES)}")
    return args


def local_model(name: str) -> Path:
    """The file behind an alias, fetched by twinpath's own command when it is not cached yet."""
    if Path(name).exists():
        return Path(name).resolve()
    answer = subprocess.run(
        [sys.executable, "-m", "twinpath", "models", "pull", name], stdout=subprocess.PIPE, text=True, check=True
    )
    return Path(answer.stdout.split()[-1])


def command(piece: str, settings: Settings, args: argparse.Namespace) -> list[str]:
    """What repeats this piece elsewhere: its arguments without the folders of this machine."""
    flags = {"--model": settings.model.name, "--rounds": args.rounds, "--threads": args.threads, "--isa": args.isa}
    return ["python", "-m", "benchmarks", piece, *(str(part) for pair in flags.items() for part in pair)]


def run_piece(name: str, settings: Settings, args: argparse.Namespace, versions: dict[str, str]) -> str:
    """Run one piece, keep its JSON, return its table."""
    measure, table, _ = PIECES[name]
    print(f"{name} on {settings.model.name} ...", file=sys.stderr, flush=True)
    found = measure(settings)
    result: dict[str, Any] = uvloop.run(found) if inspect.iscoroutine(found) else found
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    isa = "" if settings.isa == "auto" else f"-{settings.isa}"
    path = args.out / f"{day}-{name}-{settings.format_name.lower()}{isa}.json"
    # Servers read these too, so a result without them could not be repeated.
    variables = {name: value for name, value in os.environ.items() if name.startswith("TWINPATH_")}
    facts = {"model": settings.model.name, "rounds": settings.rounds, "environment": variables, "result": result}
    path.write_bytes(result_document(name, command(name, settings, args), versions, facts))
    return f"{settings.model.name}\n{render(table(result))}\n"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = args.peers or ROOT.parent / (".venv-peers" if args.isa == "auto" else f".venv-peers-{args.isa}")
    peers = find_peers(folder) or (install_peers(folder, args.isa) if args.with_peers else None)
    versions = {"twinpath": __version__, **(peers.versions() if peers else {})}
    if peers is None:
        print("peers not installed (--with-peers): twinpath alone", file=sys.stderr)
    args.out.mkdir(parents=True, exist_ok=True)
    model = local_model(args.model)
    with tempfile.TemporaryDirectory(prefix="twinpath-bench-") as scratch:
        settings = Settings(
            model=model,
            peers=peers,
            rounds=args.rounds,
            threads=tuple(int(count) for count in args.threads.split(",")),
            isa=args.isa,
            log_dir=Path(scratch),
            formats_dir=args.formats_dir.resolve(),
        )
        chosen = [settings, *(replace(settings, model=settings.form(name)) for name in args.formats.split(",") if name)]
        tables = [run_piece(name, one, args, versions) for one in chosen for name in args.pieces or PIECES]
    print("\n" + "\n".join(tables))


if __name__ == "__main__":
    main()
