"""Are a request's grammars ones that the engine will take? Found out before anything is answered."""

from __future__ import annotations

from twinpath.api.offload import INLINE_SIZE, Offload
from twinpath.grammar import GrammarChecker
from twinpath.types import Grammar


class Grammars:
    """One per app. Compiling takes up to a second, so it never happens on the event loop."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._checker = GrammarChecker()

    async def check(self, grammar: Grammar, param: str) -> None:
        """Raises: InvalidRequest naming `param` and, of a schema, the part that cannot be used."""
        await self._offload.run(INLINE_SIZE + 1, lambda: self._checker.check(grammar, param))
