"""The masks of a plan for an engine that asks for them after its forward: most are not needed, or not in full."""

from __future__ import annotations

from dataclasses import dataclass

from twinpath.types import Int32s, StepPlan, TokenMasks


@dataclass(frozen=True, slots=True)
class RowMask:
    """The mask of one row. Shapes: int32 [ceil(vocab / 32)], see `TokenMasks`."""

    _masks: TokenMasks
    _index: int

    def allows(self, token: int) -> bool:
        """False also when it is not known without the whole mask."""
        source = self._masks.source
        return source is not None and source.allows(self._index, token)

    def words(self) -> Int32s:
        """All of it."""
        if self._masks.source is None:
            self._masks.ready.wait()
        else:
            self._masks.source.fill(self._index)
        words: Int32s = self._masks.words[self._index]
        return words


def row_masks(plan: StepPlan) -> dict[int, RowMask]:
    """Segment index -> its mask."""
    masks = plan.masks
    return {} if masks is None else {segment: RowMask(masks, i) for i, segment in enumerate(masks.segments.tolist())}
