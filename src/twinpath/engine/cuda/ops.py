"""The operations of a CUDA step behind one table: Triton kernels, or their plain twins (CPU tests, comparison)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from twinpath.engine.cuda.collectives import Collective

Operation = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Operations:
    """Signatures: the functions of the same name in `twinpath.kernels`."""

    linear: Operation
    embed_rows: Operation
    add_norm: Operation
    rotate_append: Operation
    gate: Operation
    attend: Operation
    sample_rows: Operation
    score_rows: Operation
    fetch_inputs: Operation
    feed_decode: Operation
    #: With whom the model is shared.
    ranks: Collective | None = None


def triton_operations(vocab_size: int, device: torch.device, *, batch_invariant: bool = False) -> Operations:
    """On the card, or on the CPU under TRITON_INTERPRET=1; with the one-launch sampler where the card has clusters.

    batch_invariant: a row's products may not depend on the other rows: slower.
    """
    from twinpath.kernels.cluster_sampler.kernel import build_sampler
    from twinpath.kernels.fixed_linear import launch as fixed_linear
    from twinpath.kernels.fixed_linear import reference as vendor_linear
    from twinpath.kernels.prefill_attention import launch as attention
    from twinpath.kernels.prefill_rows import launch as rows
    from twinpath.kernels.sampler import launch as sampler
    from twinpath.kernels.step_inputs import launch as inputs

    sample_rows = build_sampler(vocab_size, device) or sampler.sample_rows
    linear = fixed_linear.linear if batch_invariant else vendor_linear.linear
    return Operations(
        linear, rows.embed_rows, rows.add_norm, rows.rotate_append, rows.gate, attention.attend, sample_rows,
        sampler.score_rows, inputs.fetch_inputs, inputs.feed_decode,
    )  # fmt: skip


def plain_operations() -> Operations:
    """Needs no Triton."""
    from twinpath.kernels.fixed_linear import reference as vendor_linear
    from twinpath.kernels.prefill_attention import reference as attention
    from twinpath.kernels.prefill_rows import reference as rows
    from twinpath.kernels.sampler import reference as sampler
    from twinpath.kernels.step_inputs import reference as inputs

    return Operations(
        vendor_linear.linear, rows.embed_rows, rows.add_norm, rows.rotate_append, rows.gate, attention.attend,
        sampler.sample_rows, sampler.score_rows, inputs.fetch_inputs, inputs.feed_decode,
    )  # fmt: skip
