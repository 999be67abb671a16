"""Pinned templates: beginnings of prompts (system message, tools) that are computed once and never taken back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twinpath.kv.chain import Chain
from twinpath.kv.pages import PagePool
from twinpath.types import Int32s


@dataclass(slots=True, eq=False)
class Template:
    """One pinned beginning. Pages hold whole pages of its tokens only: the rest is computed with each request."""

    name: str
    num_tokens: int
    #: Requests with this salt may use it, or all when it is shared.
    salt: str
    shared: bool
    num_pages: int
    #: None while it is computed.
    chain: Chain | None = None
    num_hits: int = 0
    #: Deleted while it was computed.
    dropped: bool = False


class TemplateTable:
    """Templates by name, within a limit of pages."""

    def __init__(self, pool: PagePool, max_pages: int) -> None:
        self.max_pages = max_pages
        #: Pages that are pinned or will be; those of two templates count twice.
        self.num_pages = 0
        self._pool = pool
        self._templates: dict[str, Template] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def get(self, name: str) -> Template | None:
        return self._templates.get(name)

    def all(self) -> list[Template]:
        return list(self._templates.values())

    def refusal(self, template: Template) -> str | None:
        """Why it cannot be added, None when it can."""
        if template.name in self._templates:
            return f"there is a template {template.name!r} already; delete it first"
        if not template.num_pages:
            return f"the template has {template.num_tokens} tokens, less than one page: nothing can be kept of it"
        if self.num_pages + template.num_pages > self.max_pages:
            return (
                f"the template needs {template.num_pages} pages; {self.num_pages} of at most {self.max_pages} pages "
                f"for templates are taken"
            )
        return None

    def add(self, template: Template) -> None:
        """Reserve pages for a template that was not refused."""
        self._templates[template.name] = template
        self.num_pages += template.num_pages

    def pin(self, template: Template, chain: Chain) -> None:
        """Its pages are computed and cached: hold them."""
        if not template.dropped:
            template.chain = chain
            self._pool.pin(chain.pages)

    def remove(self, name: str, now_s: float) -> Template | None:
        """Its pages are prefixes like others from now on; None when there is none of this name."""
        template = self._templates.pop(name, None)
        if template is not None:
            template.dropped = True
            self.num_pages -= template.num_pages
            if template.chain is not None:
                self._pool.unpin(template.chain.pages[::-1], now_s)
        return template

    def note_hit(self, chain: Chain) -> None:
        """A request starts with its pages."""
        for template in self._templates.values():
            template.num_hits += template.chain is chain

    def find(self, tokens: Int32s, num_tokens: int, salt: str) -> tuple[Chain, int] | None:
        """Of the template with the most pages that `tokens[:num_tokens]` begins with, and their number."""
        best: Chain | None = None
        most = 0
        for template in self._templates.values():
            if template.chain is not None and (template.shared or template.salt == salt):
                num_pages = template.chain.num_common_pages(tokens, num_tokens)
                if num_pages > most:
                    best, most = template.chain, num_pages
        return None if best is None else (best, most)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool's pins are those of the templates."""
        assert self.num_pages == sum(template.num_pages for template in self._templates.values())
        pins = np.zeros(self._pool.num_pages, np.int32)
        for template in self._templates.values():
            if template.chain is not None:
                assert template.chain.num_pages == template.num_pages
                pins[template.chain.pages] += 1
        assert (pins == self._pool.pins()).all(), "pins differ"
