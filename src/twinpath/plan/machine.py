"""Machines a load can be simulated on: what the engine can hold, what steps cost, what users of it expect."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinpath.plan.arrivals import SloClass
from twinpath.scheduler.cost import Coefficients
from twinpath.types import EngineInfo


@dataclass(frozen=True, slots=True)
class Machine:
    """An engine and the limits its server runs with."""

    name: str
    info: EngineInfo
    #: Milliseconds per part of a step.
    cost: Coefficients
    max_num_seqs: int
    max_num_batched_tokens: int
    #: Used when the user names no classes.
    classes: tuple[SloClass, ...]

    def with_cost(self, cost: Coefficients) -> Machine:
        return replace(self, cost=cost)


#: Measured: 4.8 ms a decode step, 1 ms more for 127 more rows (8B, bf16, one H200). Derived: 27 us a prefill row
#: (16 GFLOP at 600 TFLOP/s), 128 KiB of KV a token read at 4 TB/s, 0.5 MFLOP a prefill pair at 500 TFLOP/s.
_H200_8B = Machine(
    "h200-8b",
    EngineInfo(
        num_layers=32,
        hidden_size=1,  # Nobody computes: the residual stream of a slice need not have its size.
        vocab_size=1 << 31,
        max_model_len=131072,
        page_size=64,
        num_pages=14_000,
        max_slots=64,
        max_step_tokens=8192,
        depth=1,
        device="cuda",
        description="simulated 8B, bf16, one H200",
    ),
    Coefficients(
        plan=0.1,
        forward=4.69,
        decode_row=0.0079,
        early_row=0.0079,
        prefill_row=0.027,
        decode_token=3.3e-5,
        prefill_token=1.05e-6,
        sampled_row=0.002,
        knee_rows=128,
    ),
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    classes=(
        SloClass("short", ttft_ms=300, tpot_ms=25, max_new_tokens=2048),
        SloClass("long", ttft_ms=15_000, tpot_ms=50, priority=1),
    ),
)

#: Measured: 3.1 ms a decode step, 0.7 ms a prefill row (SmolLM2-135M, Q4_1, 2 cores). Estimated: attention.
_CPU_SMOLLM2 = Machine(
    "cpu-smollm2",
    EngineInfo(
        num_layers=30,
        hidden_size=1,
        vocab_size=1 << 31,
        max_model_len=8192,
        page_size=16,
        num_pages=4096,
        max_slots=16,
        max_step_tokens=256,
        depth=1,
        device="cpu",
        description="simulated SmolLM2-135M, 2 cores",
    ),
    Coefficients(
        plan=0.1,
        forward=2.0,
        decode_row=0.7,
        early_row=0.7,
        prefill_row=0.7,
        decode_token=2e-4,
        prefill_token=2e-4,
        sampled_row=0.3,
    ),
    max_num_seqs=16,
    max_num_batched_tokens=256,
    classes=(
        SloClass("short", ttft_ms=1500, tpot_ms=40, max_new_tokens=512),
        SloClass("long", ttft_ms=20_000, tpot_ms=80, priority=1),
    ),
)

MACHINES = {machine.name: machine for machine in (_H200_8B, _CPU_SMOLLM2)}
