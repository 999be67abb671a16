"""From attention to the next layer's q, k and v in one launch, for few rows whose weights stream past them."""
