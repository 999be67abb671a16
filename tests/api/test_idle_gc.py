"""When the collector runs; the real one of this process is only watched."""

from __future__ import annotations

import gc

import pytest

from twinpath.api.idle_gc import (
    BREATH_OBJECTS,
    BUSY_OBJECTS,
    FULL_AFTER_TICKS,
    FULL_AFTER_YOUNG_RUNS,
    IDLE_OBJECTS,
    MIDDLE_AFTER_YOUNG_RUNS,
    IdleCollector,
)


class Collector:
    """Stands for the `gc` module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[object] = []
        self.young = 0
        monkeypatch.setattr(gc, "collect", self.collect)
        monkeypatch.setattr(gc, "get_count", lambda: (self.young, 0, 0))
        for name in ("freeze", "unfreeze", "enable", "disable"):
            monkeypatch.setattr(gc, name, lambda name=name: self.calls.append(name))

    def collect(self, generation: int = 2) -> int:
        self.calls.append(generation)
        self.young = 0
        return 0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    return Collector(monkeypatch)


def test_start_freezes_what_lives_and_stop_puts_it_back(collector: Collector) -> None:
    idle = IdleCollector()
    idle.start()
    idle.stop()
    assert collector.calls == [2, "freeze", "disable", "enable", "unfreeze"]


def test_a_busy_server_is_left_alone_until_very_much_waits(collector: Collector) -> None:
    idle = IdleCollector()
    collector.young = BUSY_OBJECTS
    idle.tick(idle=False)
    assert collector.calls == []
    collector.young += 1
    idle.tick(idle=False)
    assert collector.calls == [0]


def test_a_breath_is_enough_for_less(collector: Collector) -> None:
    idle = IdleCollector()
    collector.young = BREATH_OBJECTS
    idle.breathe()
    assert collector.calls == []
    collector.young += 1
    idle.breathe()
    assert collector.calls == [0]


def test_an_idle_server_collects_what_is_young(collector: Collector) -> None:
    idle = IdleCollector()
    idle.tick(idle=True)
    collector.young = IDLE_OBJECTS + 1
    idle.tick(idle=True)
    assert collector.calls == [0]


def test_a_longer_pause_collects_everything_once(collector: Collector) -> None:
    idle = IdleCollector()
    collector.young = IDLE_OBJECTS + 1
    for _ in range(3 * FULL_AFTER_TICKS):
        idle.tick(idle=True)
    assert collector.calls == [0, 2]


def test_a_server_that_is_never_idle_collects_everything_at_long_last(collector: Collector) -> None:
    idle = IdleCollector()
    for _ in range(FULL_AFTER_YOUNG_RUNS + 1):
        collector.young = BUSY_OBJECTS + 1
        idle.tick(idle=False)
    assert collector.calls[-1] == 2 and collector.calls.count(2) == 1
    rounds, rest = divmod(FULL_AFTER_YOUNG_RUNS, MIDDLE_AFTER_YOUNG_RUNS)
    assert rest == 0 and collector.calls[:-1] == [*[0] * (MIDDLE_AFTER_YOUNG_RUNS - 1), 1] * rounds


def test_nothing_to_collect_means_no_collection(collector: Collector) -> None:
    idle = IdleCollector()
    for _ in range(3 * FULL_AFTER_TICKS):
        idle.tick(idle=True)
    assert collector.calls == []
