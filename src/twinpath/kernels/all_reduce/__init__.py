"""Sums and joins over the ranks of a tensor-parallel model, one shot each, through memory that ranks share."""
