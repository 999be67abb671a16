"""Cases and tolerance of decode attention."""

from __future__ import annotations

import torch

#: (query heads, key heads, head size, norms of q and k) of the models that are measured.
HEADS = {
    "llama-3.1-8b": (32, 8, 128, False),
    "llama-3.2-1b": (32, 8, 64, False),
    "qwen3-8b": (32, 8, 128, True),
    "qwen2.5-7b": (28, 4, 128, False),
    "smollm2-135m": (9, 3, 64, False),
    "gemma-3-1b": (4, 1, 256, True),
}

#: Relative error. Queries, softmax weights and the result are rounded to the cache's dtype once each (2**-9 bfloat16,
#: 2**-12 float16); sums are float32.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
