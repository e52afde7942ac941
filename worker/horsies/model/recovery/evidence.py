"""What a verdict is based on: the row, the last sign of life, the owner, and how long the judge has listened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.verdicts import RecoveryReason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.model.recovery.answers import Recovery
    from horsies.model.recovery.published import Published
    from horsies.model.retry import RetryPolicy
    from horsies.model.task import TaskStatus

MISSING: Final = "missing"
"""The state of an owner whose row is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A CLAIMED or RUNNING row, as it was read."""

    task_id: UUID
    status: TaskStatus
    claim_token: int
    enqueued_at: datetime
    retry_count: int = 0
    crash_count: int = 0
    policy: RetryPolicy | None = None
    good_until: datetime | None = None
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    recovery_hold_until: datetime | None = None
    no_restart: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The row of the worker that a task is claimed by, and the settings that it lives by."""

    state: str
    last_heartbeat_at: datetime
    published: Published

    @property
    def is_stopped(self) -> bool:
        return self.state == "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """Since when silence counts. With neither instant it always has, and ages are plain."""

    listening_since: datetime | None = None
    """The start of the judge's unbroken series of beats."""
    server_started_at: datetime | None = None
    """Given where nobody lives: an owner last seen shortly before may only not have come back yet."""
    deaf_until: datetime | None = None
    """Given where all that live have missed a beat: when they count as dead, and ages as plain, unless one beats."""

    def last_heard(self, beat_at: datetime, owner: Owner | None, threshold: timedelta) -> datetime:
        """The instant from which a silence counts: the beat, or the later moment at which the judge began to listen."""
        since = self.listening_since
        if self.server_started_at is not None and owner is not None:
            was_there = owner.last_heartbeat_at >= self.server_started_at - threshold
            since = self.server_started_at if was_there else since
        return beat_at if since is None else max(beat_at, since)

    def amnesty_until(self, heard_at: datetime, threshold: timedelta) -> datetime:
        """When a silence that counts from `heard_at` condemns, as far as one can tell."""
        over_at = heard_at + threshold
        return over_at if self.deaf_until is None else min(over_at, self.deaf_until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about the life of a task beside its row."""

    last_beat_at: datetime
    """The newest beat of the row's token, else the claim or the start, which are the first."""
    owner: Owner | None
    ears: Ears
    answer: Recovery | None = None
    """What a hook said, once it was asked."""

    def reason(self, *, is_lost: bool) -> RecoveryReason:
        if self.owner is None:
            return RecoveryReason.OWNER_MISSING
        if self.owner.is_stopped:
            return RecoveryReason.OWNER_STOPPED
        return RecoveryReason.OWNER_LOST if is_lost else RecoveryReason.HEARTBEAT_LOST
