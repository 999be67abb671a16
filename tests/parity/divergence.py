"""How far one set of logits is from another: the numbers the project promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinpath.types import Float32s

#: A position where the right top-2 logits are closer than this may choose either.
NEAR_TIE = 0.1


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of some positions: KL(right || values) in nats, and whether the best token agrees."""

    kl: NDArray[np.float64]
    agrees: NDArray[np.bool_]
    is_clear: NDArray[np.bool_]

    @property
    def num_positions(self) -> int:
        return len(self.kl)

    @property
    def mean_kl(self) -> float:
        return float(self.kl.mean())

    @property
    def clear_agreement(self) -> float:
        """Share of the positions outside near-ties whose best token is the same."""
        return float(self.agrees[self.is_clear].mean())


def diverge(values: Float32s, right: Float32s) -> Divergence:
    """Shapes: both [positions, vocab]."""
    log_q, log_p = _log_softmax(values), _log_softmax(right)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    top = np.partition(right, -2, axis=-1)[:, -2:]
    agrees = values.argmax(axis=-1) == right.argmax(axis=-1)
    return Divergence(kl, agrees, np.abs(top[:, 1] - top[:, 0]) >= NEAR_TIE)


def join(parts: Iterable[Divergence]) -> Divergence:
    kls, agrees, clear = zip(*((part.kl, part.agrees, part.is_clear) for part in parts), strict=True)
    return Divergence(np.concatenate(kls), np.concatenate(agrees), np.concatenate(clear))


def _log_softmax(logits: Float32s) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised
