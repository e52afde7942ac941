"""How often and how gently old rows are cleaned away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.ranges import between

_WINDOWS = ("heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours")


class RetentionConfig(Settings):
    """The cleaner's rhythm, and the windows of events, audit rows and paused workflows."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_RETENTION
    elsewhere: ClassVar[Mapping[str, str]] = {window: f"recovery.{window}" for window in _WINDOWS}

    interval_s: Annotated[int, between(60, 86_400)] = 3_600
    batch_size: Annotated[int, between(50, 10_000)] = 500
    pass_budget_s: Annotated[int, between(1, 3_600)] = 60
    event_retention_hours: Annotated[int | None, between(1, 8_760)] = 168
    audit_retention_hours: Annotated[int | None, between(1, 87_600)] = 8_760
    paused_workflow_expire_hours: Annotated[int | None, between(1, 8_760)] = None
