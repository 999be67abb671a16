"""Weights from a file's mapping to the card: threads fill pinned buffers while earlier ones are on their way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import local

import numpy as np
import torch
from torch import Tensor

from twinpath.model.dequant import dequantize
from twinpath.model.tensors import WeightTensor, WeightType

_STORED = {WeightType.F32: torch.float32, WeightType.F16: torch.float16, WeightType.BF16: torch.bfloat16}
_CHUNK_BYTES = 32 << 20


class Uploader:
    """Sends matrices as `dtype` and vectors as float32. A context: leaving it waits for all copies."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_threads: int = 8) -> None:
        self._device, self._dtype = device, dtype
        self._threads = ThreadPoolExecutor(num_threads, "upload")
        self._own = local()
        self.num_bytes = 0

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        torch.cuda.synchronize()

    def send(self, tensor: WeightTensor) -> Tensor:
        """[rows, cols] of the model's type, or [cols] float32; complete when this returns."""
        stored = _STORED.get(tensor.type)
        if stored is None:
            raw, kind = np.ascontiguousarray(dequantize(tensor)).reshape(-1).view(np.uint8), torch.float32
        else:
            raw, kind = tensor.data.reshape(-1), stored
        target = torch.empty(raw.size, dtype=torch.uint8, device=self._device)
        begins = range(0, raw.size, _CHUNK_BYTES)
        if len(begins) == 1:
            self._copy(target, raw)
        else:
            list(
                self._threads.map(lambda b: self._copy(target[b : b + _CHUNK_BYTES], raw[b : b + _CHUNK_BYTES]), begins)
            )
        self.num_bytes += raw.size
        values = target.view(kind)
        if tensor.rows == 1:
            return values.view(tensor.cols).to(torch.float32)
        return values.view(tensor.rows, tensor.cols).to(self._dtype)

    def _copy(self, target: Tensor, source: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
        if not hasattr(self._own, "pinned"):
            self._own.pinned = torch.empty(_CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pinned = self._own.pinned[: source.size]
        np.copyto(pinned.numpy(), source)
        # The allocator may hand out memory that kernels under way still read.
        self._own.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._own.stream):
            target.copy_(pinned, non_blocking=True)
        self._own.stream.synchronize()
