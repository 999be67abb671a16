"""The other systems' environment: made on request, never part of twinpath's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Kernel set -> how llama.cpp is compiled: for every instruction of this machine, or held back as twinpath is.
LLAMA_CMAKE_ARGS = {
    "auto": "-DGGML_NATIVE=ON",
    "avx2": "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON",
}
#: The same for OpenVINO, whose kernels are generated when a model loads.
OPENVINO_ENVIRONMENT = {"auto": {}, "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers", "numpy<2.4")
VERSIONS_CODE = """
import importlib.metadata as m, json
names = ("llama_cpp_python", "openvino", "openvino-genai", "openvino-tokenizers", "numpy")
print(json.dumps({name: m.version(name) for name in names}))
"""


@dataclass(frozen=True)
class Peers:
    """A Python that has the peers installed."""

    python: Path

    def versions(self) -> dict[str, str]:
        answer = subprocess.run([self.python, "-c", VERSIONS_CODE], capture_output=True, text=True, check=True)
        versions: dict[str, str] = json.loads(answer.stdout)
        return versions

    def make_formats(self, model: Path, folder: Path) -> None:
        """Requantise `model` into the formats of the comparison (`formats.py`); those that exist are kept."""
        script = Path(__file__).with_name("formats.py")
        subprocess.run([self.python, script, model, folder], check=True, stderr=subprocess.DEVNULL)


def find_peers(folder: Path) -> Peers | None:
    """None: not there, or its installation broke off."""
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", VERSIONS_CODE], capture_output=True).returncode:
        return None
    return Peers(python)


def install_peers(folder: Path, isa: str) -> Peers:
    """Create `folder`, or complete it, with llama-cpp-python (compiled, a few minutes) and OpenVINO GenAI."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    environment = {**os.environ, "CMAKE_ARGS": LLAMA_CMAKE_ARGS[isa]}
    # No cache: pip would hand over a wheel that was compiled with other arguments.
    llama = ["--no-cache-dir", "--no-binary", "llama-cpp-python", "llama-cpp-python[server]"]
    subprocess.run([*pip, *llama], check=True, env=environment)
    return Peers(python)
