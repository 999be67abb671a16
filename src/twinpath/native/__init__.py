"""The CPU step: one C++ library (csrc/), its build and its one ctypes door.

Owns packed weights, the paged key-value memory, kernels per instruction set, the thread pool and the native sampler.
May import model, errors, types. Must not know scheduling or text, and runs no Python inside a step.
"""

from twinpath.native.library import NativeLibrary, load_library
from twinpath.native.model import NativeModel, NativeOptions

__all__ = ["NativeLibrary", "NativeModel", "NativeOptions", "load_library"]
