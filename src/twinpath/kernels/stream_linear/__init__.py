"""Products of 16 to 128 rows on Hopper: weights stream past rows that a cluster shares."""
