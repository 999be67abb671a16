"""`NativeModel`: one decoder in native memory, from a spec and the weights of a file."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twinpath.errors import EngineError, ModelLoadError, NativeBuildError
from twinpath.model.rope import cos_sin_scale, inverse_frequencies
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import Weights, WeightTensor
from twinpath.native.library import (
    FORMAT_IDS,
    STATUS_CANCELLED,
    STATUS_DONE,
    STATUS_PAUSED,
    Limits,
    NativeLibrary,
    Spec,
    StepArgs,
)
from twinpath.types import Float32s, Int32s

Flags = NDArray[np.uint8]
#: (tensors done, tensors in all, name of the next)
LoadReport = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """What shapes the native memory."""

    threads: int
    isa: str = "auto"
    activation_bits: Literal[8, 16] = 16
    page_size: int = 16
    num_pages: int = 512
    #: Most rows one step may carry.
    max_rows: int = 2048
    max_position: int = 8192


@dataclass(frozen=True, slots=True)
class PausedAt:
    """A slice's time was over in this layer."""

    layer: int


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of one native step, with the arrays they point into."""

    args: StepArgs
    logits: Float32s
    hidden: Float32s
    kept: tuple[object, ...]


@dataclass(slots=True)
class NativeSlice:
    """Where a paused step keeps what it has so far; see `NativeModel.open_slice`."""

    handle: int
    #: The last, while it is paused: what goes on beside other steps reads its arrays.
    call: _Call | None = None


class NativeModel:
    """Steps over ragged rows. One thread at a time, except `cancel` and `progress`.

    Raises: ModelLoadError from the constructor when a tensor does not fit the spec.
    """

    def __init__(
        self,
        library: NativeLibrary,
        spec: ModelSpec,
        weights: Weights,
        options: NativeOptions,
        report: LoadReport | None = None,
    ) -> None:
        self.spec = spec
        self.isa = library.isa(options.isa)
        self.logits_stride = -(-spec.vocab_size // 16) * 16
        self._library = library.handle
        self._cancel = ctypes.c_int32(0)
        self._handle: int | None = self._create(spec, options)
        try:
            self._load(weights, report or (lambda done, total, what: None))
            limits = Limits(options.page_size, options.num_pages, options.max_rows, options.max_position)
            if self._library.tp_prepare(self._handle, byref(limits)) != STATUS_DONE:
                raise ModelLoadError(self._error())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free everything; later calls must not happen."""
        if self._handle:
            self._library.tp_destroy(self._handle)
            self._handle = None

    def step(
        self,
        starts: Int32s,
        lengths: Int32s,
        sample: Flags,
        tokens: Int32s,
        block_tables: Int32s,
        *,
        layers: tuple[int, int] | None = None,
        residual: Float32s | None = None,
        keep_hidden: Flags | None = None,
        beside: NativeSlice | None = None,
    ) -> tuple[Float32s, Float32s] | None:
        """Run the rows of a plan (see `twinpath.types.StepPlan`) through a range of layers. None: cancelled.

        `beside`: paused, goes on meanwhile on half of the threads and afterwards, up to its outputs, another call or
            `rest`.

        Shapes: returns logits float32 [num_sampled, vocab] (rows contiguous) and hidden float32 [rows of segments with
            keep_hidden, hidden] (the head's input, see `logits`); both empty when the range ends early.
        Raises: EngineError when an argument is out of range: nothing was computed.
        """
        call = self._call(starts, lengths, sample, tokens, block_tables, layers, residual, keep_hidden)
        if beside is None or beside.call is None:
            return self._outcome(self._library.tp_step(self._handle, byref(call.args)), call)
        status = self._library.tp_step_beside(self._handle, byref(call.args), byref(beside.call.args), beside.handle)
        return self._outcome(status, call)

    def step_slice(
        self,
        piece: NativeSlice,
        budget_ms: float,
        starts: Int32s,
        lengths: Int32s,
        sample: Flags,
        tokens: Int32s,
        block_tables: Int32s,
        *,
        resume: bool = False,
        keep_hidden: Flags | None = None,
    ) -> tuple[Float32s, Float32s] | PausedAt | None:
        """As `step` through all layers, but it pauses after about `budget_ms`; called again with `resume` and the same
        rows it goes on. Other steps and slices may run in between. Cancelled, it has to begin again."""
        call = self._call(starts, lengths, sample, tokens, block_tables, None, None, keep_hidden)
        layer = ctypes.c_int32(0)
        status = self._library.tp_step_slice(
            self._handle, byref(call.args), piece.handle, int(budget_ms * 1e6), int(resume), byref(layer)
        )
        if status == STATUS_PAUSED:
            if layer.value >= 0:
                piece.call = call
            return PausedAt(max(layer.value, 0))
        piece.call = None
        return self._outcome(status, call)

    def open_slice(self) -> NativeSlice:
        """Working memory of a step that pauses, resident as far as it is used. Close it before the model."""
        handle = self._library.tp_slice_create(self._handle)
        if not handle:
            raise EngineError("no memory for a slice")
        return NativeSlice(int(handle))

    def close_slice(self, piece: NativeSlice) -> None:
        """It must not be used any more."""
        self.rest()
        self._library.tp_slice_destroy(piece.handle)

    def logits(self, hidden: Float32s) -> Float32s:
        """Head of hidden rows that a step kept: float32 [rows, hidden] -> [rows, vocab]. Tens of rows at once."""
        hidden = np.ascontiguousarray(hidden, np.float32)
        if hidden.ndim != 2 or hidden.shape[1] != self.spec.hidden_size:
            raise EngineError(f"hidden rows of shape {hidden.shape}, expected [rows, {self.spec.hidden_size}]")
        out = np.empty((len(hidden), self.logits_stride), np.float32)
        status = self._library.tp_lm_head(
            self._handle, hidden.ctypes.data, len(hidden), out.ctypes.data, self.logits_stride
        )
        if status != STATUS_DONE:
            raise EngineError(self._error())
        return out[:, : self.spec.vocab_size]

    def cancel(self, on: bool = True) -> None:
        """From any thread: a running step stops soon; until switched off, later ones stop at once."""
        self._cancel.value = int(on)

    def rest(self) -> None:
        """Nothing goes on any more."""
        self._library.tp_rest(self._handle)

    def progress(self) -> int:
        """From any thread: grows while a step works."""
        return int(self._library.tp_progress(self._handle)) if self._handle else 0

    def leave_core(self) -> None:
        """The next step runs with one thread less: somebody has a token to pass on."""
        self._library.tp_leave_core(self._handle)

    def back_pages(self, begin: int, end: int) -> None:
        """Between steps: memory for KV pages [begin, end) now instead of at their first use, where the system can."""
        self._library.tp_back_pages(self._handle, begin, end)

    def set_threads(self, threads: int) -> None:
        """Between steps."""
        if self._library.tp_set_threads(self._handle, threads) != STATUS_DONE:
            raise EngineError(self._error())

    def _call(
        self,
        starts: Int32s,
        lengths: Int32s,
        sample: Flags,
        tokens: Int32s,
        block_tables: Int32s,
        layers: tuple[int, int] | None,
        residual: Float32s | None,
        keep_hidden: Flags | None,
    ) -> _Call:
        begin, end = layers or (0, self.spec.num_layers)
        starts, lengths = (np.ascontiguousarray(a, np.int32) for a in (starts, lengths))
        tokens, block_tables = (np.ascontiguousarray(a, np.int32) for a in (tokens, block_tables))
        sample = np.ascontiguousarray(sample, np.uint8)
        self._check_shapes(starts, lengths, sample, tokens, block_tables)
        last = end == self.spec.num_layers
        logits = np.empty((int(np.count_nonzero(sample)) if last else 0, self.logits_stride), np.float32)
        num_hidden = 0
        if keep_hidden is not None:
            keep_hidden = np.ascontiguousarray(keep_hidden, np.uint8)
            if keep_hidden.shape != starts.shape:
                raise EngineError("keep_hidden has another length than starts")
            num_hidden = int(lengths[keep_hidden != 0].sum()) if last else 0
        hidden = np.empty((num_hidden, self.spec.hidden_size), np.float32)
        args = StepArgs(
            len(starts), block_tables.shape[1], begin, end, starts.ctypes.data, lengths.ctypes.data, sample.ctypes.data,
            None if keep_hidden is None else keep_hidden.ctypes.data, tokens.ctypes.data, block_tables.ctypes.data,
            self._residual_address(residual, len(tokens)), logits.ctypes.data, self.logits_stride, hidden.ctypes.data,
            ctypes.addressof(self._cancel),
        )  # fmt: skip
        return _Call(args, logits, hidden, (starts, lengths, sample, tokens, block_tables, residual, keep_hidden))

    def _outcome(self, status: int, call: _Call) -> tuple[Float32s, Float32s] | None:
        if status == STATUS_CANCELLED:
            return None
        if status != STATUS_DONE:
            raise EngineError(self._error())
        return call.logits[:, : self.spec.vocab_size], call.hidden

    def _create(self, spec: ModelSpec, options: NativeOptions) -> int:
        layer_rope = np.asarray(spec.layer_rope, np.int32)
        layer_window = np.asarray([window or 0 for window in spec.layer_window], np.int32)
        frequencies = np.asarray([inverse_frequencies(rope, spec.head_dim) for rope in spec.ropes], np.float32)
        factors = np.asarray([cos_sin_scale(rope) for rope in spec.ropes], np.float32)
        native = Spec(
            spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.num_heads, spec.num_kv_heads, spec.head_dim,
            spec.vocab_size, spec.tied_embeddings, int(spec.activation == "gelu_tanh"), spec.qk_norm,
            spec.sandwich_norms, len(spec.ropes), spec.norm_eps, spec.embed_scale, spec.attn_scale,
            layer_rope.ctypes.data, layer_window.ctypes.data, frequencies.ctypes.data, factors.ctypes.data,
        )  # fmt: skip
        handle = self._library.tp_create(byref(native), self.isa.encode(), options.threads, options.activation_bits)
        if not handle:
            raise NativeBuildError(f"the native step cannot hold this model ({options})")
        return int(handle)

    def _load(self, weights: Weights, report: LoadReport) -> None:
        for index, name in enumerate(weights):
            report(index, len(weights), name)
            tensor = weights[name]
            data = np.ascontiguousarray(tensor.data)
            status = self._library.tp_set_tensor(
                self._handle,
                name.encode(),
                FORMAT_IDS[tensor.type],
                tensor.rows,
                tensor.cols,
                data.ctypes.data,
                data.nbytes,
            )
            if status != STATUS_DONE:
                raise ModelLoadError(self._error())
            _forget_pages(tensor)

    def _check_shapes(
        self, starts: Int32s, lengths: Int32s, sample: Flags, tokens: Int32s, block_tables: Int32s
    ) -> None:
        num_segments = len(starts)
        if lengths.shape != (num_segments,) or sample.shape != (num_segments,) or starts.ndim != 1:
            raise EngineError("starts, lengths and sample differ in length")
        if block_tables.ndim != 2 or len(block_tables) != num_segments:
            raise EngineError(f"block_tables of shape {block_tables.shape} for {num_segments} segments")
        if tokens.shape != ((num_rows := sum(lengths.tolist())),):
            raise EngineError(f"{tokens.shape} tokens for segments of {num_rows} rows")

    def _residual_address(self, residual: Float32s | None, num_rows: int) -> int | None:
        if residual is None:
            return None
        if residual.shape != (num_rows, self.spec.hidden_size) or residual.dtype != np.float32:
            raise EngineError(
                f"residual of shape {residual.shape} {residual.dtype}, expected [{num_rows}, {self.spec.hidden_size}]"
            )
        if not residual.flags.c_contiguous or not residual.flags.writeable:
            raise EngineError("residual must be contiguous and writable")
        return residual.ctypes.data

    def _error(self) -> str:
        return str(self._library.tp_error(self._handle).decode(errors="replace"))


def _forget_pages(tensor: WeightTensor) -> None:
    """Drop a packed tensor's file pages from our memory (they stay in the system's cache)."""
    base: object = tensor.data
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            break
        base = base.base
    mapping = base.base if isinstance(base, np.memmap) else getattr(base, "obj", base)
    if not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    offset = tensor.data.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (offset + tensor.data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if size > 0:
        mapping.madvise(mmap.MADV_DONTNEED, begin, size)
