"""Logits of up to 64 rows with the largest of each tile on the way out, and the largest of all."""
