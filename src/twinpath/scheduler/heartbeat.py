"""The engine process's pulse: a thread that says "busy, and this far" while the loop may be inside a long step."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from twinpath.ipc import Channel, ChannelClosed
from twinpath.ipc.messages import Gauges, Heartbeat

#: Three missed beats and a half are the watchdog's limit; each costs the engine ~50 us.
INTERVAL_S = 0.5


class HeartbeatThread:
    """Sends `source()` every INTERVAL_S until stopped or the channel closes. Before a source is set: idle beats."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stopped = Event()
        self.source: Callable[[], Heartbeat] = lambda: Heartbeat(False, 0, Gauges())
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._channel.send(self.source())
            except ChannelClosed:
                return
            self._stopped.wait(INTERVAL_S)
