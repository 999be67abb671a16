"""One decode step of a whole model in one launch, in CUDA C++ compiled at start by NVRTC; for batches of 1 to 8.

Its plain twin is the chain of the other folders' kernels: `engine/cuda/decode.py` runs either over the same buffers.
"""
