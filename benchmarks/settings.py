"""What every piece of the comparison is given: the model, the peers, how often, and where logs and results go."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import OPENVINO_ENVIRONMENT, Peers
from benchmarks.worker import Worker

ROOT = Path(__file__).resolve().parent
PROMPT = (ROOT / "prompt.txt").read_text()


@dataclass(frozen=True)
class Settings:
    """One run of the benchmark. Paths are absolute."""

    model: Path
    peers: Peers | None
    rounds: int
    threads: tuple[int, ...]
    isa: str
    log_dir: Path
    formats_dir: Path

    @property
    def format_name(self) -> str:
        """The quantisation, as file names spell it."""
        return self.model.name.removesuffix(".gguf").rsplit(".", 1)[-1].rsplit("-", 1)[-1].upper()

    def form(self, name: str) -> Path:
        """The same weights in another format, made once by llama.cpp's quantiser."""
        stem = self.model.name.removesuffix(".gguf").rsplit(".", 1)[0]
        path = self.formats_dir / f"{stem}.{name}.gguf"
        if not path.exists():
            self._peers().make_formats(self.model, self.formats_dir)
        return path

    def worker(self, system: str, threads: int, *flags: str, model: Path | None = None, form: str = "") -> Worker:
        """A contestant on `model`: twinpath, llama_cpp or openvino. `form` only adds to its name."""
        words = [system, *([form] if form else []), f"{threads}t", *(flag.lstrip("-") for flag in flags)]
        name = " ".join(words)
        python = sys.executable if system == "twinpath" else str(self._peers().python)
        if system == "twinpath":
            flags = ("--isa", self.isa, *flags)
        argv = [python, f"{system}_steps.py", str(model or self.model), "--threads", str(threads), *flags]
        environment = OPENVINO_ENVIRONMENT[self.isa] if system == "openvino" else {}
        return Worker(name, argv, self.log_dir / f"{name.replace(' ', '-')}.log", environment)

    def _peers(self) -> Peers:
        if self.peers is None:
            raise SystemExit("the peers are not installed: run `make bench ARGS=--with-peers` once")
        return self.peers


def prompt_ids(model: Path) -> list[int]:
    """The benchmark text as the model's token ids (without a beginning-of-text id), by twinpath's own tokeniser."""
    code = (
        "import json, sys; from pathlib import Path; from twinpath.model.files import files_at;"
        "from twinpath.text import load_text;"
        "text = load_text(files_at(Path(sys.argv[1])));"
        "print(json.dumps(text.tokenizer.encode(sys.stdin.read(), add_bos=False)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, model], input=PROMPT, capture_output=True, text=True, check=True
    )
    ids: list[int] = json.loads(answer.stdout)
    return ids
