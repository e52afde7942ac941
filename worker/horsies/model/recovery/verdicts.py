"""What is decided about a task whose owner fell silent, and why."""

from __future__ import annotations

from enum import StrEnum


class RecoveryReason(StrEnum):
    """Why a task was interrupted."""

    HEARTBEAT_LOST = "HEARTBEAT_LOST"
    OWNER_LOST = "OWNER_LOST"
    OWNER_MISSING = "OWNER_MISSING"
    OWNER_STOPPED = "OWNER_STOPPED"
    CHILD_DIED = "CHILD_DIED"
    SHUTDOWN = "SHUTDOWN"
