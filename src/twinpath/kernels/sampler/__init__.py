"""The device sampler: logits on the GPU -> one token per row, exactly as `twinpath.sampling` defines it."""
