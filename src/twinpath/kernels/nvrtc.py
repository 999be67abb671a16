"""CUDA C++ compiled at start for the card that is there, and launched on torch's current stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from twinpath.kernels.binary_cache import BinaryCache


class CudaError(RuntimeError):
    """A call into CUDA failed; the message names the call and what CUDA says."""


def compile_cuda(source: str, macros: Mapping[str, str], architecture: str) -> bytes:
    """Machine code (cubin) of `source`, e.g. for "sm_90a"; from disk, beside Triton's, where it was compiled before.

    Raises: CudaError with the compiler's messages.
    """
    from cuda.bindings import nvrtc  # Comes with torch's CUDA build only.

    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    options += [f"-D{name}={value}" for name, value in macros.items()]
    _, major, minor = nvrtc.nvrtcVersion()
    cache = BinaryCache(Path(triton.knobs.cache.dir) / "cuda")
    return cache.get([source, *options, f"nvrtc {major}.{minor}"], lambda: _compile(source, options))


def _compile(source: str, options: Sequence[str]) -> bytes:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaError(f"NVRTC: {log.decode(errors='replace')}")
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin)


class CudaKernel:
    """One `extern "C"` kernel that takes a single struct of 64-bit values. Keeps its module loaded."""

    def __init__(self, cubin: bytes, name: str, shared_bytes: int, *, wide_clusters: bool = False) -> None:
        """wide_clusters: the kernel's clusters have more than eight blocks, which not every Hopper card need run."""
        from cuda.bindings import driver

        self._driver = driver
        torch.cuda.current_stream().synchronize()  # Makes the device's context current in this thread.
        self._module = checked("cuModuleLoadData", driver.cuModuleLoadData(cubin))
        self._function = checked("cuModuleGetFunction", driver.cuModuleGetFunction(self._module, name.encode()))
        self._shared_bytes = shared_bytes
        attributes = driver.CUfunction_attribute
        self._set(attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        if wide_clusters:
            self._set(attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def max_clusters(self, cluster: int, block: int) -> int:
        """Clusters of `cluster` programs that the card holds at a time."""
        driver, config = self._driver, self._driver.CUlaunchConfig()
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster, 1, 1
        config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = self._shared_bytes
        config.attrs, config.numAttrs = [attribute], 1
        found = driver.cuOccupancyMaxActiveClusters(self._function, config)
        return int(checked("cuOccupancyMaxActiveClusters", found))

    def launch(
        self, grid: int | tuple[int, int], block: int, values: Sequence[int], *, dependent: bool = False
    ) -> None:
        """On torch's current stream (also while it is captured); `values` in the struct's order.

        dependent: the kernel waits by itself for the one before it, so it may begin while that one ends.
        """
        data = ctypes.create_string_buffer(struct.pack(f"<{len(values)}q", *values))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(data))
        driver, config = self._driver, self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY = grid if isinstance(grid, tuple) else (grid, 1)
        config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.sharedMemBytes = block, self._shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        if dependent:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        launched = driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(arguments), 0)
        checked("cuLaunchKernelEx", launched)

    def _set(self, attribute: Any, value: int) -> None:
        checked("cuFuncSetAttribute", self._driver.cuFuncSetAttribute(self._function, attribute, value))


def tensor_map(tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> list[int]:
    """A tensor map (16 words) of 16-bit values, the innermost axis in lines of 128 bytes with the 128-byte swizzle.

    Shapes: sizes and box per axis, innermost first; strides in elements, from the second axis on.
    """
    from cuda.bindings import driver

    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    encoded = checked(
        "cuTensorMapEncodeTiled",
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(sizes),
            tensor.data_ptr(),
            [wide(size) for size in sizes],
            [wide(stride * tensor.element_size()) for stride in strides],
            [narrow(size) for size in box],
            [narrow(1) for _ in sizes],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
    )
    return list(struct.unpack("<16q", ctypes.string_at(encoded.getPtr(), 128)))


def checked(call: str, result: tuple[Any, ...]) -> Any:
    """The call's value, if it has one."""
    if int(result[0]) != 0:
        raise CudaError(f"{call}: {result[0]}")
    return result[1] if len(result) > 1 else None
