"""First token and streams of the whole server on one card, over HTTP from the same machine.

    python -m benchmarks.gpu_http --tokenizer DIR --json out.json

Serves a model of real shape with random weights, written to --directory as safetensors, with the tokeniser of another
model; rows of the head that are no plain text are zero, so that every token is text at once. Prompts are unique from
their first words on and have exactly --prompt tokens after the template.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers
import torch
import uvloop

from benchmarks.gpu_engine import MODELS, spread
from benchmarks.servers import Server, free_port
from twinpath.bench import LoadClient, RequestRecord
from twinpath.model.spec import ModelSpec
from twinpath.model.weight_names import hf_name, weight_shapes

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_model(spec: ModelSpec, directory: Path, tokenizer: Path, device: str) -> float:
    """A Llama checkpoint with random weights in bfloat16; returns its gigabytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in TEXT_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, directory)
    rope = spec.ropes[0]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied_embeddings,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_positions,
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {name: (rows, cols) for name, (rows, cols) in weight_shapes(spec).items()}
    header: dict[str, Any] = {}
    begin = 0
    for name, (rows, cols) in shapes.items():
        size = 2 * rows * cols
        shape = [cols] if rows == 1 else [rows, cols]
        header[hf_name(name, spec)] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    is_text = plain_ids(tokenizer, spec.vocab_size)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (rows, cols) in shapes.items():
            values = torch.empty(rows, cols, dtype=torch.bfloat16, device=device)
            if name.endswith("norm"):
                values.fill_(1.0)
            else:
                values.normal_(0, 1.0 if name == "embed" else cols**-0.5)
            if name == ("embed" if spec.tied_embeddings else "lm_head"):
                values[torch.from_numpy(~is_text).to(device)] = 0.0
            values.cpu().view(torch.uint8).numpy().tofile(file)
    return begin / 1e9


def plain_ids(tokenizer: Path, vocab_size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    backend = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = np.zeros(vocab_size, np.bool_)
    for token, index in backend.get_vocab().items():
        found[index] = token.replace("Ġ", "").isascii() and token.replace("Ġ", "").isalpha()
    return found


class Prompts:
    """Messages of exactly `num_tokens` tokens after the template, no two beginning alike."""

    def __init__(self, directory: Path, seed: int) -> None:
        from twinpath.model.files import files_at
        from twinpath.text import load_text

        self._text = load_text(files_at(directory))
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._words = [t[1:] for t in backend.get_vocab() if t[:1] == "Ġ" and t[1:].isascii() and t[1:].islower()]
        self._random = random.Random(seed)
        self._backend = backend

    def make(self, num_tokens: int, system: str | None = None) -> list[dict[str, str]]:
        low = num_tokens
        while True:
            words = self._random.choices(self._words, k=max(low, 1))
            messages = [
                {"role": "system", "content": system or " ".join(words[:8])},
                {"role": "user", "content": " ".join(words[8:] if system is None else words)},
            ]
            length = self.count(messages)
            if length == num_tokens:
                return messages
            low = max(1, low - (length - num_tokens))

    def count(self, messages: list[dict[str, str]]) -> int:
        assert self._text.template is not None
        rendered = self._text.template.render(messages, add_generation_prompt=True)
        return len(self._backend.encode(rendered, add_special_tokens=False).ids)


class Load:
    """Sends chats to one server and keeps what came."""

    def __init__(self, url: str, model: str, num_clients: int) -> None:
        self._client = LoadClient(url, timeout_s=120.0)
        self._model = model

    async def chat(self, messages: list[dict[str, str]], num_tokens: int) -> RequestRecord:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": num_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        record = await self._client.send("/v1/chat/completions", msgspec.json.encode(body))
        if not record.ok or record.ttft_ms is None:
            raise RuntimeError(record.error or "no text came")
        return record

    async def aclose(self) -> None:
        await self._client.aclose()


async def keep_awake() -> None:
    """Look for answers without sleeping: the client's own wake-up is not the server's time."""
    while True:
        await asyncio.sleep(0)


async def closed_loop(load: Load, prompts: list[list[dict[str, str]]]) -> dict[str, Any]:
    """One client, one request after another, one token each."""
    for messages in prompts[:20]:
        await load.chat(messages, 1)
    records = [await load.chat(messages, 1) for messages in prompts[20:]]
    return first_tokens(records)


async def poisson(load: Load, prompts: list[list[dict[str, str]]], per_s: float) -> dict[str, Any]:
    """Arrivals at random, whatever is still running."""
    rng, tasks = random.Random(1), []
    for messages in prompts:
        tasks.append(asyncio.create_task(load.chat(messages, 1)))
        await asyncio.sleep(rng.expovariate(per_s))
    return first_tokens(await asyncio.gather(*tasks))


async def streams(load: Load, prompts: list[list[dict[str, str]]], num_tokens: int) -> dict[str, Any]:
    """All prompts at once, `num_tokens` each: times between events."""
    records = await asyncio.gather(*(load.chat(messages, num_tokens) for messages in prompts))
    gaps = [gap for record in records for gap in record.gaps_ms()[5:]]
    first = [round(record.ttft_ms or 0.0, 1) for record in records]
    return {"streams": len(prompts), "first_ms": sorted(first), **spread(gaps)}


class LongClient:
    """One client that sends long prompts back to back until told to stop."""

    def __init__(self, load: Load, prompts: list[list[dict[str, str]]]) -> None:
        self._load, self._prompts = load, prompts
        self._is_done = False
        #: (began, ended) of each answer, seconds.
        self.spans: list[tuple[float, float]] = []

    async def run(self) -> None:
        for messages in self._prompts:
            if self._is_done:
                return
            began_s = time.perf_counter()
            await self._load.chat(messages, 1)
            self.spans.append((began_s, time.perf_counter()))
        raise RuntimeError("too few long prompts were made")

    async def stop(self, running: asyncio.Task[None]) -> None:
        self._is_done = True
        await running

    def inside_ms(self, begin_s: float, end_s: float) -> list[float]:
        """Of those that began and ended in that time."""
        return [round(1e3 * (e - b), 1) for b, e in self.spans if b >= begin_s and e <= end_s]


async def beside_prefills(load: Load, prompts: Prompts, arguments: argparse.Namespace) -> dict[str, Any]:
    """Streams beside one client that sends long prompts back to back; then fresh short requests at 10/s beside it."""
    longs = [prompts.make(arguments.longest) for _ in range(arguments.long_prompts)]
    short = [prompts.make(128) for _ in range(8)]
    fresh = [prompts.make(128) for _ in range(arguments.arrivals)]
    alone = [(await load.chat(messages, 1)).ttft_ms or 0.0 for messages in longs[:3]]
    beside = LongClient(load, longs[3 : 3 + len(longs) // 2])
    streaming = asyncio.gather(*(load.chat(messages, arguments.beside_tokens) for messages in short))
    await asyncio.sleep(0.3)
    began_s = time.perf_counter()
    running = asyncio.create_task(beside.run())
    records = await streaming
    ended_s = min(record.piece_s[-1] for record in records)
    inside = beside.inside_ms(began_s, ended_s)
    gaps = [
        1e3 * (later - sooner)
        for record in records
        for sooner, later in pairwise(record.piece_s)
        if sooner >= began_s and later <= ended_s
    ]
    await beside.stop(running)
    other = LongClient(load, longs[3 + len(longs) // 2 :])
    running = asyncio.create_task(other.run())
    await asyncio.sleep(0.3)
    began_s = time.perf_counter()
    arrivals = await poisson(load, fresh, 10.0)
    beside_arrivals = other.inside_ms(began_s, time.perf_counter())
    await other.stop(running)
    kept = sorted(alone)[len(alone) // 2] / statistics.median(inside) if inside else 0.0
    return {
        "itl": {"streams": len(records), **spread(gaps)},
        "prefill_alone_ms": [round(ms, 1) for ms in alone],
        "prefill_beside_ms": inside,
        "prefill_speed_kept": round(kept, 3),
        "ttft_of_arrivals": arrivals,
        "prefill_beside_arrivals_ms": beside_arrivals,
    }


def first_tokens(records: list[RequestRecord]) -> dict[str, Any]:
    times = [record.ttft_ms for record in records if record.ttft_ms is not None]
    return {
        "ttft_ms": spread(times),
        "prompt_tokens": sorted({record.prompt_tokens for record in records}),
        "cached_tokens": sorted({record.cached_tokens for record in records}),
    }


async def measure(url: str, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    prompts = Prompts(directory, seed=int(time.time()))
    load = Load(url, directory.name, 64)
    found: dict[str, Any] = {}

    def note(name: str, row: dict[str, Any]) -> None:
        found[name] = row
        print(name, json.dumps(row), flush=True)

    awake = asyncio.create_task(keep_awake())
    count, parts = arguments.requests, arguments.parts.split(",")
    if "closed" in parts:
        note("first token, 1 client", await closed_loop(load, [prompts.make(128) for _ in range(count + 20)]))
    if "template" in parts:
        system = " ".join(["patience"] * 90)
        pinned = [prompts.make(128, system=system) for _ in range(count + 20)]
        note("first token, template cached, 1 client", await closed_loop(load, pinned))
    if "poisson" in parts:
        fresh = [prompts.make(128) for _ in range(arguments.arrivals)]
        note("first token, 10/s", await poisson(load, fresh, 10.0))
    if "streams" in parts:
        for number in (1, 8):
            short = [prompts.make(128) for _ in range(number)]
            note(f"streams {number}", await streams(load, short, arguments.tokens))
    if "beside" in parts:
        note("beside prefills", await beside_prefills(load, prompts, arguments))
    awake.cancel()
    await load.aclose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama-8b", choices=MODELS)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/random-model"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default="closed,template,poisson,streams,beside")
    parser.add_argument("--requests", type=int, default=2000, help="of one client")
    parser.add_argument("--arrivals", type=int, default=300, help="at 10 a second")
    parser.add_argument("--tokens", type=int, default=700, help="of a stream alone")
    parser.add_argument("--beside-tokens", type=int, default=1300, help="of a stream beside prefills")
    parser.add_argument("--long-prompts", type=int, default=30)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--reuse", action="store_true", help="the model that --directory holds")
    parser.add_argument("--longest", type=int, default=32_000)
    parser.add_argument("--serve", default="", help="more flags for the server")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"model": arguments.model}
    began_s = time.perf_counter()
    if not arguments.reuse:
        gigabytes = write_model(MODELS[arguments.model], arguments.directory, arguments.tokenizer, arguments.device)
        print(f"wrote {gigabytes:.1f} GB in {time.perf_counter() - began_s:.1f} s", flush=True)
    starts = []
    for _ in range(arguments.starts):
        port = free_port()
        argv = [sys.executable, "-m", "twinpath", "serve", str(arguments.directory), "--device", arguments.device]
        argv += ["--port", str(port), "--log-level", "info", *arguments.serve.split()]
        log = arguments.directory.parent / "random-model.log"
        with Server("twinpath", argv, port, "/health/ready", log) as server:
            starts.append(round(server.ready_s, 2))
            print(f"ready after {server.ready_s:.1f} s", flush=True)
            if len(starts) == arguments.starts:
                print(log.read_text()[-3000:], flush=True)
                report |= uvloop.run(measure(server.url, arguments.directory, arguments))
    report["ready_s"] = starts
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
