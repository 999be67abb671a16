"""What prefill rows need between matrix products: embedding, norms, rotation and KV append, gating."""
