"""A private PostgreSQL cluster in a folder, started by whoever needs it first and stopped by the last one out.

Everything here is synchronous; callers on an event loop use `asyncio.to_thread`.
"""

from __future__ import annotations

from horsies.embedded.binaries import Binaries, find_binaries
from horsies.embedded.layout import default_folder, other_clusters
from horsies.embedded.server import EmbeddedServer, EmbeddedStatus, ServerHandle, StopReport

__all__ = [
    "Binaries",
    "EmbeddedServer",
    "EmbeddedStatus",
    "ServerHandle",
    "StopReport",
    "default_folder",
    "find_binaries",
    "other_clusters",
]
