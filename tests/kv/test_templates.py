"""Templates hold their pages for good, within a limit, for those whom they are meant for."""

from __future__ import annotations

import numpy as np

from kv.test_sessions import SIZE, Shelf, ids
from twinpath.kv import Template, TemplateTable


def template(name: str = "t", num_pages: int = 2, *, salt: str = "", shared: bool = False) -> Template:
    return Template(name, num_pages * SIZE + 1, salt, shared, num_pages)


def pinned(shelf: Shelf, table: TemplateTable, begin: int, made: Template) -> Template:
    """Computed by a request that is over."""
    assert table.refusal(made) is None
    table.add(made)
    chain = shelf.compute(*ids(begin, made.num_pages), salt=made.salt)
    table.pin(made, chain)
    shelf.pool.release(chain.pages[::-1].copy(), 0.0)
    table.check_integrity()
    return made


def test_pinned_pages_are_never_cold_and_become_prefixes_when_let_go() -> None:
    shelf = Shelf(num_pages=8)
    table = TemplateTable(shelf.pool, 4)
    pinned(shelf, table, 0, template())
    assert shelf.pool.counts().pinned == 2 and shelf.pool.num_available == 6
    removed = table.remove("t", 5.0)
    assert removed is not None and table.remove("t", 5.0) is None
    assert shelf.pool.counts().prefix == 2 and shelf.pool.oldest_cold_s == 5.0
    table.check_integrity()


def test_refusals_say_why() -> None:
    shelf = Shelf(num_pages=8)
    table = TemplateTable(shelf.pool, 4)
    pinned(shelf, table, 0, template("a", 3))
    assert "already" in str(table.refusal(template("a", 1)))
    assert "less than one page" in str(table.refusal(template("b", 0)))
    refusal = str(table.refusal(template("b", 2)))
    assert "2 pages" in refusal and "3 of at most 4" in refusal
    assert table.refusal(template("b", 1)) is None


def test_only_its_own_salt_finds_it_unless_it_is_shared() -> None:
    shelf = Shelf(num_pages=16)
    table = TemplateTable(shelf.pool, 8)
    pinned(shelf, table, 0, template("mine", salt="a"))
    pinned(shelf, table, 1000, template("all", salt="x", shared=True))
    mine, every = np.array(ids(0, 3), np.int32), np.array(ids(1000, 3), np.int32)
    assert table.find(mine, len(mine), "b") is None
    found = table.find(mine, len(mine), "a")
    assert found is not None and found[1] == 2
    for salt in ("a", "b", ""):
        assert table.find(every, len(every), salt) is not None


def test_the_longest_beginning_wins_and_hits_are_counted() -> None:
    shelf = Shelf(num_pages=16)
    table = TemplateTable(shelf.pool, 8)
    short, long = pinned(shelf, table, 0, template("short", 1)), pinned(shelf, table, 0, template("long", 3))
    assert shelf.pool.counts().pinned == 3  # A page of both counts once.
    tokens = np.array(ids(0, 4), np.int32)
    found = table.find(tokens, len(tokens), "")
    assert found is not None and found[1] == 3
    table.note_hit(found[0])
    assert (short.num_hits, long.num_hits) == (0, 1)
    assert table.find(tokens[:6], 6, "") is not None  # A part of one is worth having too.


def test_a_template_deleted_while_it_was_computed_is_not_pinned() -> None:
    shelf = Shelf(num_pages=8)
    table = TemplateTable(shelf.pool, 4)
    made = template()
    table.add(made)
    table.remove("t", 0.0)
    chain = shelf.compute(*ids(0, 2))
    table.pin(made, chain)
    assert shelf.pool.num_pinned == 0
