"""llama.cpp through llama-cpp-python's low-level API: no Python between steps but the argmax."""

from __future__ import annotations

import argparse
import ctypes
import time
from itertools import pairwise
from typing import Any

import llama_cpp as lc
import numpy as np
from protocol import BatchDecode, Generation, serve

FLASH = {
    "off": lc.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": lc.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "auto": lc.LLAMA_FLASH_ATTN_TYPE_AUTO,
}


@lc.llama_log_callback
def _silent(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    return None


class LlamaCpp:
    """One model, one context per batch size (each sequence gets its own stretch of KV)."""

    def __init__(self, path: str, threads: int, flash: str, num_context: int) -> None:
        lc.llama_log_set(_silent, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.settings = {"threads": threads, "flash_attention": flash, "num_context": num_context}
        self._model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._vocab_size = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self._model))
        self._threads, self._flash, self._num_context = threads, FLASH[flash], num_context
        self._contexts: dict[int, Any] = {}
        self._context(1)

    def _context(self, num_sequences: int) -> Any:
        if num_sequences not in self._contexts:
            params = lc.llama_context_default_params()
            params.n_ctx = self._num_context * num_sequences
            params.n_batch = params.n_ubatch = 512
            params.n_seq_max = num_sequences
            params.n_threads = params.n_threads_batch = self._threads
            params.flash_attn_type = self._flash
            params.no_perf = True
            self._contexts[num_sequences] = lc.llama_init_from_model(self._model, params)
        return self._contexts[num_sequences]

    def describe(self) -> dict[str, Any]:
        features = lc.llama_print_system_info().decode().strip()
        return {"system": "llama.cpp", "version": lc.__version__, "features": features, "settings": self.settings}

    def _decode(self, context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        """Run one batch of (token, position, sequence, wants logits)."""
        batch = lc.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wants) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, sequence, wants
        status = lc.llama_decode(context, batch)
        lc.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama_decode failed: {status}")

    def _argmax(self, context: Any, index: int) -> int:
        logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(context, index), shape=(self._vocab_size,))
        return int(logits.argmax())

    def _prefill(self, context: Any, prompt: list[int], sequence: int) -> int:
        for begin in range(0, len(prompt), 512):
            chunk = prompt[begin : begin + 512]
            last = begin + len(chunk) == len(prompt)
            self._decode(context, [(t, begin + i, sequence, last and i == len(chunk) - 1) for i, t in enumerate(chunk)])
        return self._argmax(context, -1)

    def generate(self, prompt: list[int], num_tokens: int) -> Generation:
        context = self._context(1)
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        begin = time.perf_counter()
        token = self._prefill(context, prompt, 0)
        stamps, tokens = [time.perf_counter()], [token]
        for position in range(len(prompt), len(prompt) + num_tokens - 1):
            self._decode(context, [(token, position, 0, True)])
            token = self._argmax(context, 0)
            stamps.append(time.perf_counter())
            tokens.append(token)
        gaps = [(b - a) * 1e3 for a, b in pairwise(stamps)]
        return Generation((stamps[0] - begin) * 1e3, gaps, tokens)

    def decode_batch(self, prompts: list[list[int]], num_tokens: int) -> BatchDecode:
        context = self._context(len(prompts))
        lc.llama_memory_clear(lc.llama_get_memory(context), True)
        last = [self._prefill(context, prompt, sequence) for sequence, prompt in enumerate(prompts)]
        tokens = [[token] for token in last]
        step_ms = []
        for step in range(num_tokens - 1):
            begin = time.perf_counter()
            self._decode(context, [(last[s], len(prompt) + step, s, True) for s, prompt in enumerate(prompts)])
            last = [self._argmax(context, s) for s in range(len(prompts))]
            step_ms.append((time.perf_counter() - begin) * 1e3)
            for sequence, token in enumerate(last):
                tokens[sequence].append(token)
        return BatchDecode(step_ms, tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash", choices=sorted(FLASH), default="auto")
    parser.add_argument("--num-context", type=int, default=1024)
    args = parser.parse_args()
    begin = time.perf_counter()
    contestant = LlamaCpp(args.model, args.threads, args.flash, args.num_context)
    serve(contestant, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
