"""Composes one server: model files -> text side and engine process -> HTTP."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from twinpath.cli.display import download_bar, load_bar, settings_table, stderr_console
from twinpath.cli.resolve import with_model
from twinpath.config import ServeConfig

if TYPE_CHECKING:
    import socket

    from rich.console import Console

    from twinpath.gateway import Replica

#: How often the loading bar looks at the engine's progress.
LOAD_POLL_S = 0.1
