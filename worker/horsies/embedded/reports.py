"""What an operator is told about a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedStatus:
    """A cluster as it was found, without touching it."""

    folder: Path
    data_exists: bool
    running: bool
    kept: bool
    users_present: bool
    pid: int | None
    server_version: str | None
    """The version of the binaries that would run it, else the major version of its data."""
    binaries: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What `stop` found and therefore did; a server that was down is a fact, not a fault."""

    folder: Path
    was_running: bool
    was_kept: bool
    had_users: bool
