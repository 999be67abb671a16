"""One-shot exchanges in Triton: every rank sends what it has to all inboxes, then adds up or joins in rank order.

A packet is 32 bits of the message with a 32-bit tag, stored and read as one 64-bit word, so its reader polls the data
itself: no flag, no fence, one trip. Tags count messages on the device, so that a captured launch may be replayed. All
ranks add in the same order and hold the same bits. Source: NCCL's LL protocol (Jeaugey 2019, "Massively scale your deep
learning training with NCCL 2.4").

Messages of a rank follow each other on one stream. PUSH and TAKE: both, but in tests that play several ranks in turn.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twinpath.kernels.tile import await_previous_kernel


@triton.jit
def _tags(epochs, slots, inside, REGION: tl.constexpr):
    """The next message's tag for every slot."""
    return tl.load(epochs + slots // REGION, mask=inside, other=0) + 1


@triton.jit
def _send(words, tags, slots, inside, inboxes, RANK: tl.constexpr, WORLD: tl.constexpr, CAPACITY: tl.constexpr):
    """`words` int32 into the same slots of every other rank's inbox."""
    packets = (tags.to(tl.int64) << 32) | (words.to(tl.int64) & 0xFFFFFFFF)
    cells = ((tags & 1) * WORLD + RANK).to(tl.int64) * CAPACITY + slots
    for peer in tl.static_range(WORLD):
        if peer != RANK:
            inbox = tl.load(inboxes + peer).to(tl.pointer_type(tl.int64))
            tl.store(inbox + cells, packets, mask=inside)


@triton.jit
def _receive(
    source: tl.constexpr, tags, slots, inside, inboxes, RANK: tl.constexpr, WORLD: tl.constexpr, CAPACITY: tl.constexpr
):  # fmt: skip
    """The words that `source` sent, int32; waits for all of them."""
    inbox = tl.load(inboxes + RANK).to(tl.pointer_type(tl.int64))
    cells = inbox + ((tags & 1) * WORLD + source).to(tl.int64) * CAPACITY + slots
    packets = tl.load(cells, mask=inside, other=0, volatile=True)
    num_missing = tl.sum((inside & ((packets >> 32) != tags.to(tl.int64))).to(tl.int32), axis=0)
    while num_missing > 0:
        packets = tl.load(cells, mask=inside, other=0, volatile=True)
        num_missing = tl.sum((inside & ((packets >> 32) != tags.to(tl.int64))).to(tl.int32), axis=0)
    return packets.to(tl.int32)


@triton.jit
def _done(epochs, tags, slots, inside, REGION: tl.constexpr):
    tl.store(epochs + slots // REGION, tags, mask=inside & (slots % REGION == 0))


@triton.jit
def reduce_residual_kernel(
    partial, bias, post_gain, gain, residual, scaled, squares, inboxes, epochs, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, B_MAX: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_POST: tl.constexpr,
    RANK: tl.constexpr, WORLD: tl.constexpr, CAPACITY: tl.constexpr, REGION: tl.constexpr,
    PUSH: tl.constexpr, TAKE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """residual += norm(sum of partials + bias); scaled = residual * gain; squares of each block. Programs (row, block).

    With a norm of its own (HAS_POST) a block is a whole row.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    slots = (row * tl.num_programs(1) + part) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = tl.load(gain + columns, mask=inside, other=0.0)
    await_previous_kernel(PDL)
    cells = row.to(tl.int64) * WIDTH + columns
    own = tl.load(partial + cells, mask=inside, other=0.0)
    tags = tl.full([BLOCK], 0, tl.int32)
    if WORLD > 1:
        tags = _tags(epochs, slots, inside, REGION)
        if PUSH:
            _send(own.to(tl.int32, bitcast=True), tags, slots, inside, inboxes, RANK, WORLD, CAPACITY)
            tl.debug_barrier()  # Everybody has read the tags, and nothing sent is put off past the wait.
    if TAKE:
        y = tl.zeros([BLOCK], tl.float32)
        for source in tl.static_range(WORLD):
            if source == RANK:
                y += own
            else:
                words = _receive(source, tags, slots, inside, inboxes, RANK, WORLD, CAPACITY)
                y += words.to(tl.float32, bitcast=True)
        if HAS_BIAS:
            y += tl.load(bias + columns, mask=inside, other=0.0)
        if HAS_POST:
            post = tl.load(post_gain + columns, mask=inside, other=0.0)
            y = y * tl.rsqrt(tl.sum(tl.where(inside, y * y, 0.0), axis=0) / WIDTH + eps) * post
        total = tl.load(residual + cells, mask=inside, other=0.0) + y
        tl.store(residual + cells, total, mask=inside)
        tl.store(scaled + cells, (total * weight).to(scaled.dtype.element_ty), mask=inside)
        tl.store(squares + part * B_MAX + row, tl.sum(tl.where(inside, total * total, 0.0), axis=0))
        if WORLD > 1:
            _done(epochs, tags, slots, inside, REGION)


@triton.jit
def _low(words, DTYPE: tl.constexpr):
    """The 16-bit value in the low half of each word, float32."""
    return (words & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def _half(values, DTYPE: tl.constexpr):
    """float32 -> the bits of a 16-bit value, int32."""
    return values.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def add_up_kernel(
    words, inboxes, epochs, num_words, BLOCK: tl.constexpr, DTYPE: tl.constexpr, IS_HALF: tl.constexpr,
    RANK: tl.constexpr, WORLD: tl.constexpr, CAPACITY: tl.constexpr, REGION: tl.constexpr,
    PUSH: tl.constexpr, TAKE: tl.constexpr,
):  # fmt: skip
    """`words` int32 [N] = the sum over all ranks of the values they hold: one float32, or two of a 16-bit type each,
    added as float32 in rank order and rounded once."""
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = slots < num_words
    own = tl.load(words + slots, mask=inside, other=0)
    tags = _tags(epochs, slots, inside, REGION)
    if PUSH:
        _send(own, tags, slots, inside, inboxes, RANK, WORLD, CAPACITY)
        tl.debug_barrier()
    if TAKE:
        low = tl.zeros([BLOCK], tl.float32)
        high = tl.zeros([BLOCK], tl.float32)
        for source in tl.static_range(WORLD):
            word = own
            if source != RANK:
                word = _receive(source, tags, slots, inside, inboxes, RANK, WORLD, CAPACITY)
            if IS_HALF:
                low += _low(word, DTYPE)
                high += _low(word >> 16, DTYPE)
            else:
                low += word.to(tl.float32, bitcast=True)
        total = low.to(tl.int32, bitcast=True)
        if IS_HALF:
            total = _half(low, DTYPE) | (_half(high, DTYPE) << 16)
        tl.store(words + slots, total, mask=inside)
        _done(epochs, tags, slots, inside, REGION)


@triton.jit
def join_kernel(
    part, out, inboxes, epochs, own_size, size, total_size, BLOCK: tl.constexpr, RANK: tl.constexpr,
    WORLD: tl.constexpr, CAPACITY: tl.constexpr, REGION: tl.constexpr, PUSH: tl.constexpr, TAKE: tl.constexpr,
):  # fmt: skip
    """out[row] = the ranks' parts of the row side by side, `size` 32-bit words each, the last ones perhaps fewer.
    Programs (row, block of a part)."""
    row, block = tl.program_id(0), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    slots = (row * tl.num_programs(1) + block) * BLOCK + tl.arange(0, BLOCK)
    is_slot = columns < size
    own = tl.load(part + row.to(tl.int64) * own_size + columns, mask=columns < own_size, other=0)
    tags = _tags(epochs, slots, is_slot, REGION)
    if PUSH:
        # Who has less fills up with zeros: that it was heard is what keeps ranks in step.
        _send(own, tags, slots, is_slot, inboxes, RANK, WORLD, CAPACITY)
        tl.debug_barrier()
    if TAKE:
        for source in tl.static_range(WORLD):
            inside = is_slot & (source * size + columns < total_size)
            words = own
            if source != RANK:
                words = _receive(source, tags, slots, is_slot, inboxes, RANK, WORLD, CAPACITY)
            tl.store(out + row.to(tl.int64) * total_size + source * size + columns, words, mask=inside)
        _done(epochs, tags, slots, is_slot, REGION)
