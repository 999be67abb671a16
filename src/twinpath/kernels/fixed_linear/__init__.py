"""Matrix products whose rows do not depend on how many rows there are: the order of every sum is fixed."""
