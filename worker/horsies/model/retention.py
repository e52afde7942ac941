"""Retention windows by category, and the summary of a retention pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.model.settings.recovery import RecoveryConfig, RetentionConfig


SCHEDULE_RUN_WINDOW = timedelta(days=30)
"""How long runs of schedules are kept; the newest 50 of each schedule are always kept."""


class RetentionCategory(StrEnum):
    """Kinds of rows with their own retention window, in the order in which a pass deletes them."""

    AUDIT = "audit"  # first: a pass started by an operator writes an audit row itself
    HEARTBEATS = "heartbeats"
    WORKER_STATES = "worker_states"
    WORKERS = "workers"
    WORKFLOWS = "workflows"  # includes the tasks of the runs; TASKS covers only tasks outside of runs
    TASKS = "tasks"
    EVENTS = "events"
    SCHEDULE_RUNS = "schedule_runs"

    @property
    def table(self) -> str:
        """The main table of the category."""
        return f"horsies_{self.value}"

    @property
    def label(self) -> str:
        """Its name in output for people."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionWindows:
    """How long each kind of row is kept (None: for ever), and the most rows deleted per transaction."""

    heartbeats: timedelta | None = None
    worker_states: timedelta | None = None
    terminal_records: timedelta | None = None
    events: timedelta | None = None
    audit: timedelta | None = None
    schedule_runs: timedelta | None = None
    batch_size: int = 500

    @classmethod
    def of(cls, recovery: RecoveryConfig, retention: RetentionConfig) -> RetentionWindows:
        return cls(
            heartbeats=_hours(recovery.heartbeat_retention_hours),
            worker_states=_hours(recovery.worker_state_retention_hours),
            terminal_records=_hours(recovery.terminal_record_retention_hours),
            events=_hours(retention.event_retention_hours),
            audit=_hours(retention.audit_retention_hours),
            schedule_runs=SCHEDULE_RUN_WINDOW,
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
            case RetentionCategory.SCHEDULE_RUNS:
                return self.schedule_runs

    def __iter__(self) -> Iterator[tuple[RetentionCategory, timedelta | None]]:
        return ((category, self.for_category(category)) for category in RetentionCategory)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCleanup:
    """What a pass deleted from one category, or would delete."""

    category: RetentionCategory
    window: timedelta | None
    rows: int = 0
    """Rows of the main table only: workflow runs, not their nodes."""
    bytes: int = 0
    """Estimated from the average row size of each table, including indexes."""
    oldest_at: datetime | None = None
    tables: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows by table, including dependent ones: attempts of tasks, nodes and tasks of workflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSummary:
    """What one pass deleted, or would delete."""

    categories: tuple[CategoryCleanup, ...]
    is_complete: bool = True
    """False if rows are left: the pass ran out of time, or another process was running one."""
    is_busy: bool = False
    """Another process was running a pass."""

    @property
    def rows(self) -> int:
        return sum(cleanup.rows for cleanup in self.categories)

    @property
    def bytes(self) -> int:
        return sum(cleanup.bytes for cleanup in self.categories)

    @property
    def counts(self) -> dict[str, int]:
        """Deleted rows by category, without categories that lost none."""
        return {cleanup.category.value: cleanup.rows for cleanup in self.categories if cleanup.rows}


def _hours(hours: int | None) -> timedelta | None:
    return None if hours is None else timedelta(hours=hours)
