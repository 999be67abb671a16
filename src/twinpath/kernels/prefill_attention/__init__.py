"""Attention of prefill rows over paged keys and values."""
