"""Between the HTTP surface and the engines: admission, replicas, supervision.

Owns which requests get in, the engine process's life, and the promise that every request ends in exactly one terminal
event. May import ipc, scheduler and engine (for the in-process replica), contracts, config, types, errors. Never
imports torch or reads text.
"""

from twinpath.gateway.holdings import Holdings
from twinpath.gateway.launcher import Launcher
from twinpath.gateway.local import LocalLauncher
from twinpath.gateway.process import ProcessLauncher
from twinpath.gateway.replica import Replica, ReplicaLike
from twinpath.gateway.supervisor import ReplicaState, WatchdogLimits

__all__ = [
    "Holdings",
    "Launcher",
    "LocalLauncher",
    "ProcessLauncher",
    "Replica",
    "ReplicaLike",
    "ReplicaState",
    "WatchdogLimits",
]
