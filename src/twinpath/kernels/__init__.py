"""GPU kernels: a folder per operation with `kernel` (Triton), `reference` (its plain twin) and, where needed, `spec`.

Owns what runs on the device below the engine: arithmetic over tensors that the caller allocated. May import sampling,
model, types, errors. Must not know plans, requests or engines, and allocates nothing when called. Imported only where
torch and Triton are present; under TRITON_INTERPRET=1 every kernel also runs on the CPU.
"""
