"""Attention of few rows over long paged contexts, in CUDA for Hopper. Imports torch and the CUDA compiler only."""
