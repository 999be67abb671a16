"""The listening socket, and descriptors for what it lets in: made before anything is loaded, so it imports little."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket

from twinpath.config import HttpConfig
from twinpath.errors import UserError

_log = logging.getLogger("twinpath.server")

#: Descriptors besides connections: model files, the engine's channel, and room to answer 503 above the limit.
SPARE_DESCRIPTORS = 256
MIN_CONNECTIONS = 8
_MACOS_MAX = 10_240
BACKLOG = 4096


def bind(config: HttpConfig) -> socket.socket:
    """A listening socket, and descriptors for `max_connections`: done first, so that mistakes show before loading.

    Raises: UserError, one line.
    """
    fit_descriptors(config.max_connections)
    try:
        infos = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UserError(f"cannot listen on host '{config.host}': {error.strerror}") from None
    family, _, _, _, address = infos[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(_bind_message(config, error)) from None
    listener.setblocking(False)
    return listener


def fit_descriptors(max_connections: int) -> int:
    """Raise RLIMIT_NOFILE for that many connections; returns how many fit, with a line in the log when it is fewer.

    Raises: UserError when not even a few fit.
    """
    needed = max_connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    for limit in (reachable, min(reachable, _MACOS_MAX)):
        # macOS says "infinite" and then refuses more than its own bound.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, soft), hard))
            break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_fitting = min(soft - SPARE_DESCRIPTORS, max_connections)
    if num_fitting < MIN_CONNECTIONS:
        raise UserError(f"the limit of {soft} open files leaves no room for connections: raise it (ulimit -n {needed})")
    if num_fitting < max_connections:
        _log.warning(
            "the limit of %d open files allows %d connections, not %d: raise it (ulimit -Hn %d) or lower "
            "--http-max-connections",
            soft,
            num_fitting,
            max_connections,
            needed,
        )
    return num_fitting


def _bind_message(config: HttpConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {config.port} on {config.host} is in use: stop the other server or choose another --port"
    if error.errno == errno.EACCES:
        return f"not allowed to listen on {where}: ports below 1024 need privileges"
    return f"cannot listen on {where}: {error.strerror}"
