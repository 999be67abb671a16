"""Attention of one new token per row over paged keys and values, with norms of q and k, rotation and append."""
