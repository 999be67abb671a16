"""Cases and tolerance of the projections of up to 64 rows; the other folders' projections share them."""

from __future__ import annotations

import torch

#: Summed axes of the models that are measured: hidden, heads times head size, inner.
WIDTHS = {
    "llama-3.1-8b": (4096, 4096, 14_336),
    "llama-3.2-1b": (2048, 2048, 8192),
    "qwen3-8b": (4096, 4096, 12_288),
    "qwen2.5-7b": (3584, 3584, 18_944),
    "smollm2-135m": (576, 576, 1536),
    "gemma-3-1b": (1152, 1024, 6912),
}

#: Relative error (norm of the difference over that of the reference). Operands are exact, products and sums float32,
#: whose order costs at most a few units per thousand terms; a 16-bit result adds its own rounding (2**-9 bfloat16,
#: 2**-12 float16, each over sqrt(3)).
SUM_TOLERANCE = 1e-5
RESULT_TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-4, torch.bfloat16: 2.5e-3}


def bytes_moved(num_rows: int, width: int, itemsize: int = 2) -> int:
    """Weights once; activations are small beside them."""
    return num_rows * width * itemsize
