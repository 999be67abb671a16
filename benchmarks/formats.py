"""Other formats of one model for the comparison, made by llama.cpp's own quantiser: `python formats.py MODEL.gguf
OUT_DIR`.

Runs in the peers' environment. Requantising a quantised file loses a little more than quantising the original; every
contestant reads the same result, so speeds and equal-token checks stay comparable, and quality claims are not made
from these files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp as lc

FTYPES = {
    "F16": lc.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": lc.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": lc.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": lc.LLAMA_FTYPE_MOSTLY_Q4_0,
}


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    stem = source.name.removesuffix(".gguf").rsplit(".", 1)[0]
    for name, ftype in FTYPES.items():
        target = folder / f"{stem}.{name}.gguf"
        if target.exists():
            continue
        params = lc.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = ftype, True, 2
        partial = target.with_suffix(".partial")
        status = lc.llama_model_quantize(str(source).encode(), str(partial).encode(), params)
        if status:
            raise SystemExit(f"llama.cpp could not make {target.name}: status {status}")
        partial.rename(target)


if __name__ == "__main__":
    main()
