"""OpenVINO GenAI on a GGUF file: the streaming pipeline for one sequence, the continuous-batching one for several.

Its default backend caches prefixes, so a prompt that was seen is not computed again; both pipelines here run without.
"""

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
    """Latency hint and a given number of inference threads; the batch pipeline is built when first needed."""

    def __init__(self, path: str, threads: int) -> None:
        self.settings = {"threads": threads, "hint": "LATENCY", "backend": "SDPA; continuous batching for batches"}
        self._path = path
        self._options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = genai.LLMPipeline(path, "CPU", ATTENTION_BACKEND="SDPA", **self._options)
        self._batches: Any = None
        self._next_id = 0

    def describe(self) -> dict[str, Any]:
        return {"system": "OpenVINO", "version": genai.__version__, "settings": self.settings}

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
        gaps = [(after - before) * 1e3 for before, after in pairwise(streamer.stamps)]
        return Generation((streamer.stamps[0] - begin) * 1e3, gaps, streamer.token_ids)

    def decode_batch(self, prompts: list[list[int]], num_tokens: int) -> BatchDecode:
        if self._batches is None:
            scheduler = genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.max_num_batched_tokens = 2048
            scheduler.cache_size = 1
            self._batches = genai.ContinuousBatchingPipeline(self._path, scheduler, "CPU", self._options)
        handles = []
        for prompt in prompts:
            self._next_id += 1
            ids = ov.Tensor(np.asarray([prompt], dtype=np.int64))
            handles.append(self._batches.add_request(self._next_id, ids, self._config(num_tokens)))
        self._batches.step()  # all prompts
        step_ms = []
        while self._batches.has_non_finished_requests():
            begin = time.perf_counter()
            self._batches.step()
            step_ms.append((time.perf_counter() - begin) * 1e3)
        return BatchDecode(step_ms, [list(handle.read_all()[0].generated_ids) for handle in handles])


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
