"""Compile and launch the persistent decode step. `step.cu` says how it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from twinpath.kernels.nvrtc import CudaKernel, compile_cuda, tensor_map

#: Rows of the batch that a launch can take, and how warps share them: (warps side by side, blocks of eight of each).
COLUMN_WARPS = {8: (1, 1)}
#: Programs that share a weight tile, and a key head's context.
_CLUSTER = 2
#: Weight rows of one tile; sums of squares come in parts of so many.
TILE_ROWS = 16
#: Warps that compute, beside the one that streams.
_WARPS = 8
#: Dynamic shared memory of one program on sm_90.
_SHARED_BYTES = 227 * 1024
_MAX_SPLITS = 32
_MAX_GROUP = 8
_SOURCES = ("primitives.cuh", "layout.cuh", "stream.cuh", "projection.cuh", "attention.cuh", "step.cu")
#: Stages that may be on their way at a time.
_IN_FLIGHT = 3
#: Of these, for parts of the step that wait for the grid.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the kernel is compiled for; names as in `ModelSpec`."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    attn_scale: float
    gelu: bool
    head_norms: bool
    qkv_bias: bool
    #: Parts of a context that the buffers hold.
    num_splits: int
    num_windows: int
    page_size: int
    #: Rows that the buffers hold.
    max_batch: int
    #: This rank, and how many share the model; heads, inner size and vocabulary are this rank's.
    rank: int = 0
    world: int = 1


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One layer. None where the model has no such tensor."""

    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None
    mlp_gain: torch.Tensor
    #: The norm after this layer: the next one's first, or the model's last.
    next_gain: torch.Tensor
    q_gain: torch.Tensor | None
    k_gain: torch.Tensor | None
    rope: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    #: Which row of `borders` this layer reads.
    window: int


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Buffers of all layers, in the order of the kernel's struct; shapes as in `engine/cuda/buffers.py`.

    best, best_id: one entry per program for each row. meetings int32 [2], zero before the first launch. inboxes int64
    [world], addresses of int64 [2, world, hidden * columns], and epoch int32 [1], zero at first: for ranks.
    """

    block_tables: torch.Tensor
    positions: torch.Tensor
    borders: torch.Tensor
    residual: torch.Tensor
    projected: torch.Tensor
    attn_squares: torch.Tensor
    mlp_squares: torch.Tensor
    partial: torch.Tensor
    stats: torch.Tensor
    logits: torch.Tensor
    best: torch.Tensor
    scaled: torch.Tensor
    attended: torch.Tensor
    gated: torch.Tensor
    best_id: torch.Tensor
    arrivals: torch.Tensor
    meetings: torch.Tensor
    inboxes: torch.Tensor | None = None
    epoch: torch.Tensor | None = None


def tile_width(shape: StepShape) -> int | None:
    """Columns of a weight tile: the most that divide every summed axis. None: this model needs the chain."""
    sums = (shape.hidden_size, shape.num_heads * shape.head_dim, shape.intermediate_size)
    widths = [w for w in (512,) if not any(k % w for k in sums) and w * 8 // shape.head_dim >= shape.page_size]
    even = shape.vocab_size % TILE_ROWS == 0 and shape.head_dim in (64, 128, 256)
    small = (
        shape.max_batch >= min(COLUMN_WARPS)
        and shape.max_batch % 4 == 0
        and shape.num_splits <= _MAX_SPLITS
        and shape.num_heads // shape.num_kv_heads <= _MAX_GROUP
    )
    return widths[0] if widths and even and small and shape.page_size % 16 == 0 else None


def is_supported(shape: StepShape, device: torch.device, dtype: torch.dtype) -> bool:
    """Hopper, bfloat16, and a shape whose tiles come out even."""
    if device.type != "cuda" or dtype != torch.bfloat16 or tile_width(shape) is None:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


class PersistentStep:
    """One compiled model over one set of buffers. `launch` is one kernel; it may be captured."""

    def __init__(
        self, shape: StepShape, layers: Sequence[LayerTensors], head: torch.Tensor, tensors: StepTensors, columns: int
    ) -> None:
        device = tensors.residual.device
        macros, shared_bytes = step_macros(shape, columns)
        self.max_batch = columns
        cubin = compile_cuda(step_source(), macros, "sm_90a")
        self._kernel = CudaKernel(cubin, "decode_step", shared_bytes)
        self._num_threads = (int(macros["WARPS"]) + 1) * 32
        num_clusters = self._kernel.max_clusters(_CLUSTER, self._num_threads)
        self.num_programs = num_clusters * _CLUSTER
        self.num_splits = used_splits(shape)
        width = int(macros["TILE_K"])
        maps = [m for layer in layers for m in _layer_maps(layer, shape, width)] + [_weight_map(head, width)]
        self._maps = torch.tensor(maps, dtype=torch.int64, device=device)
        self._table = torch.tensor([_layer_row(layer) for layer in layers], dtype=torch.int64, device=device)
        self._keep = (layers, head, tensors)
        self._values = [self._table.data_ptr(), self._maps.data_ptr(), self._maps[-1].data_ptr()]
        self._values += [_address(getattr(tensors, name)) for name in StepTensors.__dataclass_fields__]
        self._sizes = (tensors.block_tables.shape[1], num_clusters)

    def launch(self, batch: int) -> None:
        """Rows [0, batch), batch <= max_batch, after `begin_step`; the results are those of the chain's last kernel."""
        if not 0 < batch <= self.max_batch:
            raise ValueError(f"this persistent step takes 1 to {self.max_batch} rows, got {batch}")
        self._kernel.launch(self.num_programs, self._num_threads, [*self._values, batch, *self._sizes])


def used_splits(shape: StepShape) -> int:
    """Parts of a context that meet in memory; each is shared by a cluster."""
    return max(1, shape.num_splits // _CLUSTER)


def step_macros(shape: StepShape, columns: int = 8) -> tuple[dict[str, str], int]:
    """Macros of `step.cu` and the bytes of shared memory: as many stages as fit."""
    width = tile_width(shape)
    if width is None:
        raise ValueError(f"the persistent step does not fit this model: {shape}")
    splits = used_splits(shape)
    stage_bytes = TILE_ROWS * width * 2
    scratch_bytes = _scratch_bytes(shape, columns, splits)
    num_stages = (_SHARED_BYTES - scratch_bytes) // stage_bytes
    macros = {
        "HIDDEN": shape.hidden_size,
        "INTER": shape.intermediate_size,
        "HEADS": shape.num_heads,
        "KV_HEADS": shape.num_kv_heads,
        "DIM": shape.head_dim,
        "VOCAB": shape.vocab_size,
        "LAYERS": shape.num_layers,
        "SPLITS": splits,
        "BORDERS": shape.num_splits + 1,
        "WINDOWS": shape.num_windows,
        "PAGE": shape.page_size,
        "TILE_K": width,
        "STAGES": num_stages,
        "IN_FLIGHT": min(_IN_FLIGHT, num_stages),
        "AHEAD": _AHEAD,
        "CLUSTER": _CLUSTER,
        "WARPS": _WARPS,
        "COLUMN_WARPS": COLUMN_WARPS[columns][0],
        "COLUMN_BLOCKS": COLUMN_WARPS[columns][1],
        "B_MAX": shape.max_batch,
        "EPS": f"{shape.norm_eps!r}f",
        "SCALE": f"{shape.attn_scale * 1.4426950408889634!r}f",
        "GELU": int(shape.gelu),
        "HEAD_NORMS": int(shape.head_norms),
        "QKV_BIAS": int(shape.qkv_bias),
        "RANK": shape.rank,
        "WORLD": shape.world,
        "SHARED_BYTES": num_stages * stage_bytes + scratch_bytes,
    }
    return {name: str(value) for name, value in macros.items()}, num_stages * stage_bytes + scratch_bytes


def _scratch_bytes(shape: StepShape, columns: int, splits: int) -> int:
    """Shared memory beside the ring, as `Shared` in layout.cuh, and some more (checked when it is compiled)."""
    group, dim = shape.num_heads // shape.num_kv_heads, shape.head_dim
    k_warps = _WARPS // COLUMN_WARPS[columns][0]
    sums = 2 * _CLUSTER * k_warps * columns * 20 * 4 + 2 * _CLUSTER * TILE_ROWS * columns * 4
    attention = 4 * 2 * (group + 2) * dim + _WARPS * 4 * group * (dim + 2)
    messages = 2 * _CLUSTER * (group * dim // _CLUSTER * 4 + 8 * group + 16)
    tables = 72 * shape.num_layers + 4 * columns * shape.num_windows * (splits + 1) + _WARPS * 4 * columns
    return max(sums, attention + messages) + tables + 1024


@cache
def step_source() -> str:
    """All files as one text: NVRTC sees no files."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in _SOURCES)


def _weight_map(weight: torch.Tensor, width: int) -> list[int]:
    """Boxes of 16 rows and `width` columns, [width / 64][16][64] in shared memory."""
    rows, columns = weight.shape
    return tensor_map(weight, (64, rows, columns // 64), (columns, 64), (64, TILE_ROWS, width // 64))


def _layer_maps(layer: LayerTensors, shape: StepShape, width: int) -> list[list[int]]:
    """Maps in the order of the kernel's struct. A gate box is 8 gates and their 8 ups; a page box one head's page,
    keys, then values."""
    inner, hidden = shape.intermediate_size, shape.hidden_size
    gate_up = tensor_map(
        layer.gate_up,
        (64, inner, 2, hidden // 64),
        (hidden, inner * hidden, 64),
        (64, TILE_ROWS // 2, 2, width // 64),
    )
    dim, lines = shape.head_dim, layer.k.numel() // shape.head_dim
    apart = (layer.v.data_ptr() - layer.k.data_ptr()) // layer.k.element_size()
    pages = tensor_map(layer.k, (64, lines, dim // 64, 2), (dim, 64, apart), (64, shape.page_size, dim // 64, 2))
    return [_weight_map(layer.qkv, width), _weight_map(layer.o, width), gate_up, _weight_map(layer.down, width), pages]


def _layer_row(layer: LayerTensors) -> list[int]:
    """One layer of the kernel's table."""
    tensors = (layer.qkv_bias, layer.mlp_gain, layer.next_gain, layer.q_gain, layer.k_gain, layer.rope)
    return [*map(_address, tensors), layer.k.data_ptr(), layer.v.data_ptr(), layer.window]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
