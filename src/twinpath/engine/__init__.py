"""Engines: StepPlan in, StepResult out.

Owns the twins behind `contracts.Engine`: `scripted` (for tests, exact), `reference` (plain torch, the oracle), `cpu`
(the native step), `cuda` (a folder: kernels and graphs). May import kernels, sampling, native, model, kv, ipc,
contracts, types. Torch only in `reference*` and `cuda`. Never parses text, never decides what runs. Nothing is exported
here, so that asking for one engine does not import another's dependencies.
"""
