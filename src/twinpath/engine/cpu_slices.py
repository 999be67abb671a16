"""Working memory of the CPU engine's paused plans, by the residual that names each."""

from __future__ import annotations

from twinpath.errors import EngineError
from twinpath.native.model import NativeModel, NativeSlice
from twinpath.types import Float32s

#: Paused plans that may be about: one of each lane, and one that was dropped meanwhile.
_MOST = 4


class CpuSlices:
    """Hands out slices; one whose plan never goes on (its request left) is taken back when others need it."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._free: list[NativeSlice] = []
        #: Least recently used first. The residual is kept, so that no other has its address.
        self._paused: dict[int, tuple[NativeSlice, Float32s]] = {}

    def take(self, residual: Float32s, resume: bool) -> NativeSlice:
        """Raises: EngineError when nothing is paused under this name."""
        key = residual.ctypes.data
        if resume:
            if key not in self._paused:
                raise EngineError("the plan goes on with what is not paused")
            return self._paused.pop(key)[0]
        if (stale := self._paused.pop(key, None)) is not None:
            self._free.append(stale[0])
        if not self._free and len(self._paused) >= _MOST:
            self._free.append(self._paused.pop(next(iter(self._paused)))[0])
        return self._free.pop() if self._free else self._model.open_slice()

    def keep(self, residual: Float32s, piece: NativeSlice) -> None:
        """Its plan is paused."""
        self._paused[residual.ctypes.data] = piece, residual

    def find(self, residual: Float32s) -> NativeSlice | None:
        """What is paused under this name."""
        found = self._paused.get(residual.ctypes.data)
        return None if found is None else found[0]

    def give_back(self, piece: NativeSlice) -> None:
        """Its plan is done, or begins again."""
        self._free.append(piece)

    def close(self) -> None:
        """Before the model."""
        for piece in [*self._free, *(piece for piece, _ in self._paused.values())]:
            self._model.close_slice(piece)
        self._free, self._paused = [], {}
