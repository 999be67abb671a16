"""What other APIs call the fields of a chat request, so that its errors name what their callers wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from twinpath.errors import RequestError

_QUOTED = re.compile(r"'([a-z_]+)([\w.\[\]]*)'")
_ROOT = re.compile(r"[a-z_]+")


class FieldNames:
    """`names`: patterns of a chat request's field paths and what their match becomes; the first that fits counts."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._names = [(re.compile(pattern + r"(?![a-z_])"), name) for pattern, name in names]

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Errors leave the body with these names, in `param` and where the message quotes the field."""
        try:
            yield
        except RequestError as error:
            if error.param is not None:
                root = _ROOT.match(error.param)
                error.message = _QUOTED.sub(
                    # Other words in quotes may be the caller's own.
                    lambda match: f"'{self._of(match[1] + match[2])}'" if root and match[1] == root[0] else match[0],
                    error.message,
                )
                error.param = self._of(error.param)
            raise

    def _of(self, path: str) -> str:
        for pattern, name in self._names:
            if match := pattern.match(path):
                return match.expand(name) + path[match.end() :]
        return path
