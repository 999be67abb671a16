"""Names what holds up a loop: a thread that looks at the loops every few milliseconds, and at what a late one is doing.

Two kinds of loops are watched. An event loop is asked to answer a probe; one that does not answer in time is stalled. A
loop of our own says itself when it works (`Beat.begin`) and when it waits (`Beat.end`): one attribute each. Code that
holds the interpreter's lock stops the tracer too: then the tracer's own lateness is the stall, if a watched thread used
the processor meanwhile, and the frame is the one it is in when the lock is free again.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

#: Nobody who streams tokens notices less.
THRESHOLD_S = 0.005
#: Looking costs ~20 us of the interpreter.
_LOOK_EVERY_S = 0.002
_NUM_KEPT = 64
_NUM_FRAMES = 6
#: Of a tracer's lateness: what a thread must have computed to be the reason.
_GUILTY_SHARE = 0.5
_log = logging.getLogger("twinpath.stalls")


@dataclass(frozen=True, slots=True)
class Stall:
    """A loop that did not turn for `seconds`.

    cpu_s: what its thread computed meanwhile; much less than `seconds` means that it waited for the interpreter's
    lock, a lock of its own, or the machine. frames: what it was in, innermost first: file:line function.
    """

    loop: str
    seconds: float
    cpu_s: float
    frames: tuple[str, ...]


class Beat:
    """How a loop of our own tells when it works. Written by its thread, read by the tracer's."""

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        #: When the turn that runs began; 0: it waits, as it should.
        self.since_s = 0.0

    def begin(self) -> None:
        self.since_s = perf_counter()

    def end(self) -> None:
        self.since_s = 0.0


class _Probe:
    """An event loop's beat: a question that it answers when it turns."""

    __slots__ = ("_call", "_since_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call: Callable[[Callable[[], None]], object] = loop.call_soon_threadsafe
        self._since_s = 0.0

    @property
    def since_s(self) -> float:
        asked_s = self._since_s
        if not asked_s:
            self._since_s = perf_counter()
            try:
                self._call(self._answer)
            except RuntimeError:  # The loop is closed.
                self._since_s = 0.0
        return asked_s

    def _answer(self) -> None:
        self._since_s = 0.0


class _Watched:
    """A loop, and what is known of its turn that is late."""

    def __init__(self, name: str, beat: Beat | _Probe, thread_id: int) -> None:
        self.name = name
        self.beat = beat
        self.thread_id = thread_id
        self._clock_id = _cpu_clock(thread_id)
        self.cpu_s = self.read_cpu_s()
        #: Of the late turn: when it began, the processor time then, and where it was.
        self.since_s = self.since_cpu_s = 0.0
        self.frames: tuple[str, ...] = ()

    def read_cpu_s(self) -> float:
        if self._clock_id is None:
            return perf_counter()
        try:
            return time.clock_gettime(self._clock_id)
        except OSError:  # The thread is gone.
            return 0.0


class StallTracer:
    """Watches loops from `start` to `stop`. `stalls` are the last ones, `num_stalls` and `worst_s` of all."""

    def __init__(self, threshold_s: float = THRESHOLD_S) -> None:
        self._threshold_s = threshold_s
        self.stalls: deque[Stall] = deque(maxlen=_NUM_KEPT)
        self.num_stalls = 0
        self.worst_s = 0.0
        self._watched: list[_Watched] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def watch_event_loop(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Call it in the loop's own thread."""
        self._watched.append(_Watched(name, _Probe(loop), threading.get_ident()))

    def watch_beat(self, name: str) -> Beat:
        """For a loop of our own; call it in its thread."""
        beat = Beat()
        self._watched.append(_Watched(name, beat, threading.get_ident()))
        return beat

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stall-tracer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last_s = perf_counter()
        while not self._stopped.wait(_LOOK_EVERY_S):
            now_s = perf_counter()
            for watched in self._watched:
                self._look(watched, now_s, now_s - last_s - _LOOK_EVERY_S)
            last_s = now_s

    def _look(self, watched: _Watched, now_s: float, late_s: float) -> None:
        """`late_s`: by so much is the tracer itself late."""
        cpu_s, since_s = watched.read_cpu_s(), watched.beat.since_s
        used_s, watched.cpu_s = cpu_s - watched.cpu_s, cpu_s
        if watched.frames and since_s != watched.since_s:
            # The late turn ended since the last look, so its length is known to within one.
            self._record(watched, now_s - watched.since_s, cpu_s - watched.since_cpu_s)
        elif since_s and now_s - since_s >= self._threshold_s:
            if not watched.frames:
                watched.since_s, watched.since_cpu_s = since_s, cpu_s - used_s
                watched.frames = frames_of(watched.thread_id)
        elif late_s >= self._threshold_s and used_s >= _GUILTY_SHARE * late_s:
            watched.frames = frames_of(watched.thread_id)
            self._record(watched, late_s, used_s)

    def _record(self, watched: _Watched, seconds: float, cpu_s: float) -> None:
        stall = Stall(watched.name, seconds, max(cpu_s, 0.0), watched.frames)
        watched.frames = ()
        self.num_stalls += 1
        self.worst_s = max(self.worst_s, seconds)
        self.stalls.append(stall)
        where = " < ".join(stall.frames)
        _log.warning("%s loop: %.0f ms (%.0f computing) in %s", stall.loop, seconds * 1e3, stall.cpu_s * 1e3, where)


def frames_of(thread_id: int) -> tuple[str, ...]:
    """What a thread is in, innermost first. Reads no file."""
    frame = sys._current_frames().get(thread_id)
    found: list[str] = []
    while frame is not None and len(found) < _NUM_FRAMES:
        file_name = frame.f_code.co_filename.rpartition("/")[2]
        found.append(f"{file_name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


def _cpu_clock(thread_id: int) -> int | None:
    """Of one thread; None where the system has none: then every late thread counts as computing."""
    read = getattr(time, "pthread_getcpuclockid", None)
    return None if read is None else int(read(thread_id))
