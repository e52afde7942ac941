"""What is kept for how long, and what a pass of retention took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.model.settings.recovery import RecoveryConfig, RetentionConfig


class RetentionCategory(StrEnum):
    """Kinds of rows that go by a window of their own, in the order in which a pass takes them."""

    AUDIT = "audit"  # first, for the pass of an operator writes a row of its own
    HEARTBEATS = "heartbeats"
    WORKER_STATES = "worker_states"
    WORKERS = "workers"
    WORKFLOWS = "workflows"
    TASKS = "tasks"
    EVENTS = "events"

    @property
    def table(self) -> str:
        """The table of the rows that count as the category's own."""
        return f"horsies_{self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionWindows:
    """How long each kind of row is kept; None keeps it for ever. At most `batch_size` rows go in one transaction."""

    heartbeats: timedelta | None = None
    worker_states: timedelta | None = None
    terminal_records: timedelta | None = None
    events: timedelta | None = None
    audit: timedelta | None = None
    batch_size: int = 500

    @classmethod
    def of(cls, recovery: RecoveryConfig, retention: RetentionConfig) -> RetentionWindows:
        return cls(
            heartbeats=_hours(recovery.heartbeat_retention_hours),
            worker_states=_hours(recovery.worker_state_retention_hours),
            terminal_records=_hours(recovery.terminal_record_retention_hours),
            events=_hours(retention.event_retention_hours),
            audit=_hours(retention.audit_retention_hours),
            batch_size=retention.batch_size,
        )

    def for_category(self, category: RetentionCategory) -> timedelta | None:
        match category:
            case RetentionCategory.HEARTBEATS:
                return self.heartbeats
            case RetentionCategory.WORKER_STATES | RetentionCategory.WORKERS:
                return self.worker_states
            case RetentionCategory.WORKFLOWS | RetentionCategory.TASKS:
                return self.terminal_records
            case RetentionCategory.EVENTS:
                return self.events
            case RetentionCategory.AUDIT:
                return self.audit

    def __iter__(self) -> Iterator[tuple[RetentionCategory, timedelta | None]]:
        return ((category, self.for_category(category)) for category in RetentionCategory)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCleanup:
    """What a pass took of one category, or would take."""

    category: RetentionCategory
    window: timedelta | None
    rows: int = 0
    """Rows of the category itself: runs of workflows, not their nodes."""
    bytes: int = 0
    """An estimate, from the average row of each table with its indexes."""
    oldest_at: datetime | None = None
    tables: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows by table, with those that go along: attempts with tasks, nodes and tasks with workflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSummary:
    """What one pass took, or would take."""

    categories: tuple[CategoryCleanup, ...]
    is_complete: bool = True
    """False where the pass ended with rows left: its time was over, or another process was cleaning."""
    is_busy: bool = False
    """Another process was cleaning."""

    @property
    def rows(self) -> int:
        return sum(portion.rows for portion in self.categories)

    @property
    def bytes(self) -> int:
        return sum(portion.bytes for portion in self.categories)

    @property
    def counts(self) -> dict[str, int]:
        """Rows of the categories of which something was taken."""
        return {portion.category.value: portion.rows for portion in self.categories if portion.rows}


def _hours(hours: int | None) -> timedelta | None:
    return None if hours is None else timedelta(hours=hours)
