"""OpenVINO GenAI's LLMPipeline on a GGUF file; a streamer stamps each token as the pipeline hands it over."""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import BatchDecode, Generation, serve


class Stamps(genai.StreamerBase):
    """Collects the ids and the moment of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.token_ids: list[int] = []
        self.stamps: list[float] = []

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        now = time.perf_counter()
        for token_id in token if isinstance(token, list) else [token]:
            self.token_ids.append(token_id)
            self.stamps.append(now)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        return None


class OpenVino:
    """One pipeline, latency hint, the given number of inference threads."""

    def __init__(self, path: str, threads: int) -> None:
        self.settings = {"threads": threads, "hint": "LATENCY"}
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = genai.LLMPipeline(path, "CPU", **options)

    def describe(self) -> dict[str, Any]:
        return {"system": "openvino", "version": genai.__version__, "settings": self.settings}

    def _config(self, num_tokens: int) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        return config

    def generate(self, prompt: list[int], num_tokens: int) -> Generation:
        streamer = Stamps()
        ids = ov.Tensor(np.asarray([prompt], dtype=np.int64))
        begin = time.perf_counter()
        self._pipeline.generate(ids, self._config(num_tokens), streamer)
        gaps = [(b - a) * 1e3 for a, b in pairwise(streamer.stamps)]
        return Generation((streamer.stamps[0] - begin) * 1e3, gaps, streamer.token_ids)

    def decode_batch(self, prompts: list[list[int]], num_tokens: int) -> BatchDecode:
        """The pipeline streams one sequence only.

        A batch's step is its own perf counter's mean time per output token.
        """
        ids = np.asarray(prompts, dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        result = self._pipeline.generate(inputs, self._config(num_tokens))
        step = result.perf_metrics.get_tpot().mean
        return BatchDecode([step], [list(tokens) for tokens in result.tokens])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    begin = time.perf_counter()
    contestant = OpenVino(args.model, args.threads)
    serve(contestant, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
