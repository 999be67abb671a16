"""A normed addition to the residual (Gemma's sandwich), which also hands on what the next norm needs."""
