"""An embedded PostgreSQL server in a folder: starts on demand and stops soon after the last process using it exits.

The API is synchronous; on an event loop, call it with `asyncio.to_thread`.
"""

from __future__ import annotations

from horsies.embedded.binaries import Binaries, find_binaries
from horsies.embedded.server import EmbeddedServer, EmbeddedStatus, ServerHandle, StopReport

__all__ = [
    "Binaries",
    "EmbeddedServer",
    "EmbeddedStatus",
    "ServerHandle",
    "StopReport",
    "find_binaries",
]
