"""Decode beside other work on one card: what a partition costs it, and why.

    python -m benchmarks.gpu_overlap --json out.json

The persistent step of an 8B (8 rows at 1K) holds 72 multiprocessors while blocks of one kind of load hold the other 60:
idle, products without memory, reads of what the L2 holds, reads of memory at several rates, the library's products. A
reader of 72 blocks, which never meets, stands for a step without its meetings. Then the whole card's step from a stream
of high priority beside products from one of low priority, and the two in turn from one stream.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_decode import DEVICE, build_step
from benchmarks.gpu_models import GPU_MODELS
from twinpath.engine.cuda.decode import DecodeStep
from twinpath.engine.cuda.weights import random_weights
from twinpath.kernels.nvrtc import CudaKernel, compile_cuda

BATCH, CONTEXT = 8, 1024
DECODE_SMS, OTHER_SMS = 72, 60
IDLE, MULTIPLY, READ = 0, 1, 2
_PERIOD_S = 0.008
#: A block takes a multiprocessor whole.
_SHARED_BYTES = 200 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What blocks do: `bytes` of the region that they read, and how long each rests after 64 KiB."""

    name: str
    kind: int
    region_bytes: int = 1 << 20
    pause_ns: int = 0


LOADS = (
    Load("idle blocks", IDLE),
    Load("products without memory", MULTIPLY),
    Load("reads of 16 MiB in the L2", READ, 16 << 20),
    Load("reads of 16 MiB in the L2, a fifth of the rate", READ, 16 << 20, 4000),
    Load("reads of memory", READ, 8 << 30),
    Load("reads of memory, less", READ, 8 << 30, 4000),
    Load("reads of memory, little", READ, 8 << 30, 20_000),
)


class Card:
    """Launches loads and decode steps on streams of their own, and times steps that ran beside a load."""

    def __init__(self) -> None:
        cubin = compile_cuda(Path(__file__).with_suffix(".cu").read_text(encoding="utf-8"), {}, "sm_90a")
        self._kernel = CudaKernel(cubin, "load", _SHARED_BYTES)
        self._data = torch.ones(8 << 28, dtype=torch.int32, device=DEVICE)
        self.high = torch.cuda.Stream(priority=-1)
        self.low = torch.cuda.Stream(priority=0)
        self.counts = {sms: torch.zeros(132, dtype=torch.int64, device=DEVICE) for sms in (DECODE_SMS, OTHER_SMS)}

    def start(self, load: Load, num_sms: int, for_ms: float, stream: torch.cuda.Stream) -> Tensor:
        counts = self.counts[num_sms]
        values = [self._data.data_ptr(), load.region_bytes // 16, counts.data_ptr()]
        with torch.cuda.stream(stream):
            counts.zero_()
            self._kernel.launch(num_sms, 512, [*values, load.kind, int(for_ms * 1e6), load.pause_ns])
        return counts

    def beside(self, run: Callable[[], None], begin: Callable[[], object], for_ms: float, most: int) -> dict[str, Any]:
        """Times of `run` on the high stream between `begin` and `for_ms` later."""
        torch.cuda.synchronize()
        first = torch.cuda.Event(enable_timing=True)
        first.record(self.high)
        begin()
        time.sleep(0.002)
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(most)]
        with torch.cuda.stream(self.high):
            for before, after in events:
                before.record()
                run()
                after.record()
        time.sleep(for_ms / 2e3)
        state = card_state()
        torch.cuda.synchronize()
        kept = [b.elapsed_time(a) for b, a in events[1:] if first.elapsed_time(a) < for_ms]
        return {"n": len(kept), "ms": round(statistics.median(kept), 3) if kept else None, **state}


def card_state() -> dict[str, float]:
    """Megahertz and watts, as the driver says at this moment."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return {"sm_mhz": clock, "watts": round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3)}


def capture(step: DecodeStep, num_sms: int) -> torch.cuda.CUDAGraph:
    """The step by so many programs of the persistent kernel, a tenth captured; its positions do not move."""
    persistent = step._persistent[BATCH]
    persistent.num_programs, persistent._sizes = num_sms, (persistent._sizes[0], num_sms // 2)
    return step.capture(BATCH, lambda batch: None)


class Products:
    """The four products of a layer over many rows, again and again."""

    def __init__(self, step: DecodeStep, num_rows: int = 2048) -> None:
        self._layer = step._weights.layers[0]
        spec = step._weights.spec
        rows = {"dtype": torch.bfloat16, "device": DEVICE}
        self._x = torch.randn(num_rows, spec.hidden_size, **rows)  # type: ignore[arg-type]
        self._wide = torch.randn(num_rows, spec.intermediate_size, **rows)  # type: ignore[arg-type]
        layer = self._layer
        self._weights = [layer.qkv, layer.o, layer.gate_up]
        self.flops = 2 * num_rows * sum(w.numel() for w in (*self._weights, layer.down))

    def run(self) -> None:
        for weight in self._weights:
            torch.nn.functional.linear(self._x, weight)
        torch.nn.functional.linear(self._wide, self._layer.down)

    def repeat(self, num_times: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            for _ in range(num_times):
                self.run()


@contextmanager
def partition(num_sms: int) -> Iterator[torch.cuda.Stream]:
    """A stream whose work stays on so many multiprocessors."""
    context = torch.cuda.green_contexts.GreenContext.create(num_sms=num_sms, device_id=torch.cuda.current_device())
    context.set_context()
    try:
        yield torch.cuda.Stream()
    finally:
        context.pop_context()


def bench_partition(card: Card, step: DecodeStep) -> list[dict[str, Any]]:
    graphs = {sms: capture(step, sms) for sms in (132, DECODE_SMS)}
    found = [
        {"decode_sms": sms, "beside": "nothing", **card.beside(graphs[sms].replay, lambda: None, 1e3, 24)}
        for sms in graphs
    ]

    def rate(counts: Tensor, for_ms: float) -> float:
        return round(int(counts.sum()) / for_ms / 1e9, 2)

    for load in LOADS:
        for_ms = 220.0
        row = card.beside(graphs[DECODE_SMS].replay, partial(card.start, load, OTHER_SMS, for_ms, card.low), for_ms, 30)
        found.append(
            {"decode_sms": DECODE_SMS, "beside": load.name, **row, "load_tb_s": rate(card.counts[OTHER_SMS], for_ms)}
        )
    reader = LOADS[4]
    for load in (LOADS[0], LOADS[1], LOADS[2], LOADS[4]):
        torch.cuda.synchronize()
        card.start(load, OTHER_SMS, 60.0, card.low)
        counts = card.start(reader, DECODE_SMS, 50.0, card.high)
        torch.cuda.synchronize()
        rates = {"reader_tb_s": rate(counts, 50.0), "load_tb_s": rate(card.counts[OTHER_SMS], 60.0)}
        found.append({"reader_sms": DECODE_SMS, "beside": load.name, **rates})
    return found


def bench_products(card: Card, step: DecodeStep, products: Products) -> list[dict[str, Any]]:
    """A partition of 60 for the library's products, the step on what they leave; and a reader in its place."""
    graph, found = capture(step, DECODE_SMS), []
    with partition(OTHER_SMS) as stream:
        with torch.cuda.stream(stream):
            products.run()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(20):
                products.run()
            end.record()
            torch.cuda.synchronize()
        alone_ms = begin.elapsed_time(end) / 20
        found.append({"products_sms": OTHER_SMS, "tflops": round(products.flops / alone_ms / 1e9)})
    with partition(OTHER_SMS) as stream:
        row = card.beside(graph.replay, partial(products.repeat, int(250 / alone_ms), stream), 220.0, 30)
        found.append({"decode_sms": DECODE_SMS, "beside": "the library's products in a partition", **row})
    return found


def bench_priority(card: Card, step: DecodeStep, products: Products) -> list[dict[str, Any]]:
    """A step each 8 ms beside products: from a stream of high priority, or in turn from the same stream."""
    graph, found = capture(step, 132), []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(card.low):
        products.run()
        begin.record()
        for _ in range(20):
            products.run()
        end.record()
    torch.cuda.synchronize()
    alone_ms = begin.elapsed_time(end) / 20
    for name, stream in (("two streams, priority", card.high), ("one stream, in turn", card.low)):
        events, done, num_steps = [], 0, 60
        began_s = time.perf_counter()
        marks: list[torch.cuda.Event] = []
        for number in range(num_steps):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(stream):
                before.record()
                graph.replay()
                after.record()
            events.append((before, after))
            while time.perf_counter() < began_s + (number + 1) * _PERIOD_S:
                while marks and marks[0].query():
                    marks.pop(0)
                    done += 1
                if len(marks) < 2:
                    with torch.cuda.stream(card.low):
                        products.run()
                        marks.append(torch.cuda.Event())
                        marks[-1].record()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began_s
        times = sorted(b.elapsed_time(a) for b, a in events[2:])
        found.append(
            {
                "way": name,
                "period_ms": round(_PERIOD_S * 1e3),
                "step_p50_ms": round(times[len(times) // 2], 3),
                "step_max_ms": round(times[-1], 3),
                "products_kept": round(done * alone_ms / 1e3 / seconds, 3),
                "products_alone_tflops": round(products.flops / alone_ms / 1e9),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    weights = random_weights(GPU_MODELS["llama-3.1-8b"], DEVICE, torch.bfloat16, 2048)
    step = build_step(weights, BATCH, CONTEXT, 64)
    card, products, rows = Card(), Products(step), []
    for bench in (
        lambda: bench_partition(card, step),
        lambda: bench_priority(card, step, products),
        lambda: bench_products(card, step, products),
    ):
        for row in bench():
            print(json.dumps(row), flush=True)
            rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps({"batch": BATCH, "context": CONTEXT, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
