"""The engine for NVIDIA cards: `engine.CudaEngine`, its captured steps, and the ranks that share a model.

A step goes plan -> `inputs` -> `step` -> `graphs` over `forward` (prefill and mixed rows) or `decode` (the persistent
step, or the `chain` of kernels). `load` brings the weights, `memory` says what fits; `ranks`, `leader` and `follower`
are for several cards. Nothing is exported: a CPU may lack what these modules import.
"""
