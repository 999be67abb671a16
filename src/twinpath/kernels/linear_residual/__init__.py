"""A projection added to the residual, which also hands on what the next norm needs."""
