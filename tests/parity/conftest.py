"""Tiny models: a second torch thread only waits, and spins while it does."""

import torch

torch.set_num_threads(1)
