"""ctypes door of the step library: structures as csrc/abi.cpp and csrc/step.h spell them, and nothing else."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from twinpath.errors import NativeBuildError
from twinpath.model.tensors import WeightType

ABI_VERSION = 1
LIBRARY_NAME = "libtwinpath_step.dylib" if sys.platform == "darwin" else "libtwinpath_step.so"
LIBRARY_PATH = Path(__file__).parent / "_lib" / LIBRARY_NAME

#: tp::Format in csrc/layout.h.
FORMAT_IDS: dict[WeightType, int] = {
    WeightType.F32: 0,
    WeightType.F16: 1,
    WeightType.BF16: 2,
    WeightType.Q8_0: 3,
    WeightType.Q5_0: 4,
    WeightType.Q5_1: 5,
    WeightType.Q4_0: 6,
    WeightType.Q4_1: 7,
    WeightType.Q4_K: 8,
    WeightType.Q5_K: 9,
    WeightType.Q6_K: 10,
}

STATUS_DONE, STATUS_CANCELLED, STATUS_PAUSED = 0, 1, 4


class Spec(ctypes.Structure):
    """TpSpec."""

    _fields_ = (
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab", c_int32),
        ("tied", c_int32),
        ("activation", c_int32),
        ("qk_norm", c_int32),
        ("sandwich", c_int32),
        ("num_ropes", c_int32),
        ("norm_eps", c_float),
        ("embed_scale", c_float),
        ("attn_scale", c_float),
        ("layer_rope", c_void_p),
        ("layer_window", c_void_p),
        ("inverse_frequencies", c_void_p),
        ("rope_factors", c_void_p),
    )


class Limits(ctypes.Structure):
    """tp::Limits."""

    _fields_ = (("page_size", c_int32), ("num_pages", c_int32), ("max_rows", c_int32), ("max_position", c_int32))


class StepArgs(ctypes.Structure):
    """tp::StepArgs."""

    _fields_ = (
        ("num_segments", c_int32),
        ("max_pages", c_int32),
        ("layer_begin", c_int32),
        ("layer_end", c_int32),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("sample", c_void_p),
        ("keep_hidden", c_void_p),
        ("tokens", c_void_p),
        ("block_tables", c_void_p),
        ("residual", c_void_p),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("hidden", c_void_p),
        ("cancel", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """The loaded library; `handle` is what the sampler's door takes too."""

    handle: ctypes.CDLL

    def isa(self, name: str = "auto") -> str:
        """The kernel set that `name` selects on this machine.

        Raises: NativeBuildError when the machine or this build has none of that name.
        """
        found = self.handle.tp_isa(name.encode())
        if found is None:
            raise NativeBuildError(f"kernel set '{name}' does not run on this machine")
        return str(found.decode())

    def usable_isas(self) -> list[str]:
        """Every kernel set that runs here, best first."""
        return [name for name in ("avx512vnni", "avx2", "neon", "portable") if self.handle.tp_isa(name.encode())]


def load_library(path: Path = LIBRARY_PATH) -> NativeLibrary:
    """Raises: NativeBuildError when the library was not built, is not loadable here or is of another version."""
    if not path.exists():
        raise NativeBuildError(
            f"the native library is missing ({path}); build it with `python -m twinpath.native.build`"
        )
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeBuildError(f"the native library cannot be loaded: {error}") from error
    version = getattr(handle, "tp_abi_version", lambda: 0)()
    if version != ABI_VERSION:
        raise NativeBuildError(
            f"the native library has ABI {version}, this twinpath needs {ABI_VERSION}: "
            "run `python -m twinpath.native.build`"
        )
    _declare(handle)
    return NativeLibrary(handle)


def _declare(handle: ctypes.CDLL) -> None:
    handle.tp_isa.argtypes, handle.tp_isa.restype = (c_char_p,), c_char_p
    handle.tp_create.argtypes, handle.tp_create.restype = (POINTER(Spec), c_char_p, c_int32, c_int32), c_void_p
    handle.tp_destroy.argtypes, handle.tp_destroy.restype = (c_void_p,), None
    handle.tp_error.argtypes, handle.tp_error.restype = (c_void_p,), c_char_p
    handle.tp_progress.argtypes, handle.tp_progress.restype = (c_void_p,), c_int64
    handle.tp_set_tensor.argtypes = (c_void_p, c_char_p, c_int32, c_int32, c_int32, c_void_p, c_int64)
    handle.tp_prepare.argtypes = (c_void_p, POINTER(Limits))
    handle.tp_step.argtypes = (c_void_p, POINTER(StepArgs))
    handle.tp_lm_head.argtypes = (c_void_p, c_void_p, c_int32, c_void_p, c_int64)
    handle.tp_set_threads.argtypes = (c_void_p, c_int32)
    handle.tp_back_pages.argtypes, handle.tp_back_pages.restype = (c_void_p, c_int32, c_int32), None
    handle.tp_slice_create.argtypes, handle.tp_slice_create.restype = (c_void_p,), c_void_p
    handle.tp_slice_destroy.argtypes, handle.tp_slice_destroy.restype = (c_void_p,), None
    handle.tp_step_slice.argtypes = (c_void_p, POINTER(StepArgs), c_void_p, c_int64, c_int32, POINTER(c_int32))
    handle.tp_step_beside.argtypes = (c_void_p, POINTER(StepArgs), POINTER(StepArgs), c_void_p)
    handle.tp_rest.argtypes, handle.tp_rest.restype = (c_void_p,), None
    handle.tp_leave_core.argtypes = (c_void_p,)
    handle.tp_leave_core.restype = None
    handle.tp_test_gemm.argtypes = (c_char_p, c_int32, c_int32, c_int32, c_void_p, c_void_p, c_int32, c_int32, c_void_p)
    handle.tp_test_dequantize.argtypes = (c_int32, c_int32, c_int32, c_void_p, c_void_p)
    for name in ("tp_set_tensor", "tp_prepare", "tp_step", "tp_step_beside", "tp_step_slice", "tp_lm_head",
                 "tp_set_threads", "tp_test_gemm", "tp_test_dequantize"):  # fmt: skip
        getattr(handle, name).restype = c_int32
