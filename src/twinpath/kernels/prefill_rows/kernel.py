"""Row kernels in Triton. The residual stream is float32; what goes into a matrix product has the model's type."""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.tile import begin_between_products


@triton.jit
def _normed(x, inside, weight, size, eps):
    """RMS norm of one row in float32."""
    mean = tl.sum(tl.where(inside, x * x, 0.0), 0) / size
    return x * (1.0 / tl.sqrt_rn(mean + eps)) * weight


@triton.jit
def embed_kernel(
    tokens, positions, slots, history, history_stride, embed, scale, residual, hidden, BLOCK: tl.constexpr
):  # fmt: skip
    """residual[row] = embed[token] * scale; a padded row becomes zero. A negative token stands in the history."""
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < hidden
    slot = tl.load(slots + row).to(tl.int64)
    is_row = slot >= 0
    token = tl.where(is_row, tl.load(tokens + row), 0)
    if token < 0:
        token = tl.load(history + slot * history_stride + tl.load(positions + row))
    token = token.to(tl.int64)
    values = tl.load(embed + token * hidden + offsets, mask=inside & is_row, other=0.0).to(tl.float32)
    tl.store(residual + row.to(tl.int64) * hidden + offsets, values * scale, mask=inside)


@triton.jit
def add_norm_kernel(
    residual, delta, delta_bias, post_weight, weight, out, picked, hidden, eps,
    HAS_DELTA: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_POST: tl.constexpr, HAS_OUT: tl.constexpr,
    IS_PICKED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """residual += norm(delta + bias), each part optional; out = norm(residual). `picked` names the rows to read.

    PARTS: delta is the sum of so many arrays, one after another.
    """
    begin_between_products(PDL)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < hidden
    source = row
    if IS_PICKED:
        source = tl.maximum(tl.load(picked + row), 0).to(tl.int64)
    x = tl.load(residual + source * hidden + offsets, mask=inside, other=0.0)
    if HAS_DELTA:
        d = tl.load(delta + source * hidden + offsets, mask=inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            place = part * tl.num_programs(0).to(tl.int64) + source
            d += tl.load(delta + place * hidden + offsets, mask=inside, other=0.0)
        if HAS_BIAS:
            d += tl.load(delta_bias + offsets, mask=inside, other=0.0)
        if HAS_POST:
            post = tl.load(post_weight + offsets, mask=inside, other=0.0)
            d = _normed(d, inside, post, hidden, eps).to(out.dtype.element_ty).to(tl.float32)
        x += d
        tl.store(residual + source * hidden + offsets, x, mask=inside)
    if HAS_OUT:
        gain = tl.load(weight + offsets, mask=inside, other=0.0)
        normed = _normed(x, inside, gain, hidden, eps)
        tl.store(out + row * hidden + offsets, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotate_append_kernel(
    qkv, bias, q_norm, k_norm, rope, positions, slots, tables, max_pages, q_out, k_pages, v_pages, eps,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_NORM: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Head norms and rotation of q and k; q to `q_out`, k and v to their page. Programs (row, 0 q | 1 k | 2 v).

    PARTS: qkv is the sum of so many arrays, one after another.
    """
    begin_between_products(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    num_heads = tl.where(part == 0, H, K)
    first_head = tl.where(part == 0, 0, tl.where(part == 1, H, H + K))
    heads = tl.arange(0, HEADS)[:, None]
    pairs = tl.arange(0, HALF)[None, :]
    inside = (heads < num_heads) & (pairs < D // 2)
    columns = (first_head + heads) * D + pairs
    source = qkv + row * (H + 2 * K) * D + columns
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + D // 2, mask=inside, other=0.0).to(tl.float32)
    dtype = q_out.dtype.element_ty
    for number in tl.static_range(1, PARTS):
        again = source + number * tl.num_programs(0).to(tl.int64) * (H + 2 * K) * D
        low += tl.load(again, mask=inside, other=0.0)
        high += tl.load(again + D // 2, mask=inside, other=0.0)
    low, high = low.to(dtype).to(tl.float32), high.to(dtype).to(tl.float32)
    if HAS_BIAS:
        low = (low + tl.load(bias + columns, mask=inside, other=0.0)).to(dtype).to(tl.float32)
        high = (high + tl.load(bias + columns + D // 2, mask=inside, other=0.0)).to(dtype).to(tl.float32)
    position = tl.maximum(tl.load(positions + row), 0)
    if part < 2:
        if HAS_NORM:
            gains = k_norm
            if part == 0:
                gains = q_norm
            mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D
            scale = (1.0 / tl.sqrt_rn(mean + eps))[:, None]
            low = (low * scale * tl.load(gains + pairs, mask=pairs < D // 2, other=0.0)).to(dtype).to(tl.float32)
            high = high * scale * tl.load(gains + D // 2 + pairs, mask=pairs < D // 2, other=0.0)
            high = high.to(dtype).to(tl.float32)
        angle = rope + position.to(tl.int64) * D + pairs
        cos = tl.load(angle, mask=pairs < D // 2, other=0.0)
        sin = tl.load(angle + D // 2, mask=pairs < D // 2, other=0.0)
        low, high = low * cos - high * sin, high * cos + low * sin
    if part == 0:
        target = q_out + row * H * D + heads * D + pairs
        tl.store(target, low.to(dtype), mask=inside)
        tl.store(target + D // 2, high.to(dtype), mask=inside)
    elif slot >= 0:
        page = tl.load(tables + slot * max_pages + position // PAGE).to(tl.int64)
        pages = k_pages
        if part == 2:
            pages = v_pages
        target = pages + ((page * K + heads) * PAGE + position % PAGE) * D + pairs
        tl.store(target, low.to(dtype), mask=inside)
        tl.store(target + D // 2, high.to(dtype), mask=inside)


@triton.jit
def gate_kernel(gate_up, out, inner, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    """out = act(gate) * up, gates in the first half of a row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < inner
    dtype = out.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * inner + offsets, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + offsets, mask=inside, other=0.0).to(tl.float32)
    if IS_GELU:
        # 0.5 x (1 + tanh(z)) is x * sigmoid(2 z). Source: Hendrycks and Gimpel 2016, section 2.
        z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-z))
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * inner + offsets, (gate.to(dtype).to(tl.float32) * up).to(dtype), mask=inside)
