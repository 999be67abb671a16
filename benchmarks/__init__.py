"""Comparisons that `make bench` runs: twinpath beside other backends on one machine, in paired rounds.

`contestants/` holds one worker per system (each runs in its own process and environment), `peers.py` their environment,
the other files one piece of the comparison each. Load, records and statistics come from `twinpath.bench`.
"""
