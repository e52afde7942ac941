"""`DataSource`: the interface of the screens, implemented by `Ops`, and in memory for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.model.operator_actions import Action, ActionOptions
    from horsies.model.recovery.fleet import SweepOptions
    from horsies.model.retention import CleanupSummary
    from horsies.model.settings import AppConfig
    from horsies.recovery.report import SweepReport, SweptTask
    from horsies_ops.actions.plan import Plan, Selector
    from horsies_ops.actions.report import ActionProgress, ActionReport
    from horsies_ops.actions.schedules import BackfillPlan
    from horsies_ops.actions.sweep import CleanupReport
    from horsies_ops.reads.changes import Change
    from horsies_ops.reads.events import AuditRow, EventRow
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, QueueRow, Throughput
    from horsies_ops.reads.schedules import ScheduleRow, ScheduleRunRow
    from horsies_ops.reads.search import Count, Facets, ShortIdMatch
    from horsies_ops.reads.server import Storage
    from horsies_ops.reads.stale import SilentTasks
    from horsies_ops.reads.tasks import PayloadPreview, TaskDetail, TaskOrder, TaskPage, TaskSummary
    from horsies_ops.reads.workers import MaintenanceStatus, SnapshotRow, WorkerRow
    from horsies_ops.reads.workflows import WorkflowDetail, WorkflowFilter, WorkflowPage


class DataSource(Protocol):
    """Reads, actions and the feed. Failures raise `HorsiesError`."""

    async def database_time(self) -> datetime: ...

    def listen(self) -> AsyncIterator[Change]: ...

    async def overview(self) -> Overview: ...

    async def list_tasks(
        self,
        filter: TaskFilter = ...,  # noqa: A002  # as in `Ops`
        *,
        order: TaskOrder = ...,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage: ...

    async def count_tasks(self, filter: TaskFilter = ..., *, cap: int = 10_000) -> Count: ...  # noqa: A002

    async def facets(self, filter: TaskFilter = ...) -> Facets: ...  # noqa: A002

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]: ...

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, PayloadPreview]: ...

    async def task(self, task_id: str | UUID) -> TaskDetail | None: ...

    async def tasks_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]: ...

    async def plan(self, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan: ...

    async def apply(
        self, plan: Plan, *, progress: Callable[[ActionProgress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport: ...

    async def undo_retry(self, report: ActionReport) -> ActionReport: ...

    async def list_workflows(
        self,
        filter: WorkflowFilter = ...,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage: ...

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None: ...

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport: ...

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def list_schedules(self) -> tuple[ScheduleRow, ...]: ...

    async def schedule(self, name: str) -> ScheduleRow: ...

    async def schedule_history(self, name: str, *, limit: int = 50) -> tuple[ScheduleRunRow, ...]: ...

    async def schedule_participants(self) -> int: ...

    async def pause_schedule(self, name: str, *, reason: str | None = None) -> ActionReport: ...

    async def resume_schedule(
        self, name: str, *, catch_up: bool = False, reason: str | None = None
    ) -> ActionReport: ...

    async def run_schedule(self, name: str, *, reason: str | None = None) -> ActionReport: ...

    async def plan_backfill(self, name: str, first: datetime, last: datetime) -> BackfillPlan: ...

    async def backfill_schedule(
        self, name: str, first: datetime, last: datetime, *, reason: str | None = None
    ) -> ActionReport: ...

    @property
    def settings(self) -> AppConfig: ...

    async def list_queues(self) -> tuple[QueueRow, ...]: ...

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]: ...

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]: ...

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput: ...

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]: ...

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]: ...

    async def audit(
        self, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]: ...

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport: ...

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport: ...

    async def stale_candidates(self, options: SweepOptions = ...) -> SweepReport: ...

    async def sweep(
        self, options: SweepOptions = ..., *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport: ...

    async def nearly_stale_tasks(self, within: timedelta, options: SweepOptions = ...) -> tuple[SweptTask, ...]: ...

    async def silent_tasks(self, options: SweepOptions = ...) -> SilentTasks | None: ...

    async def maintenance_status(self) -> MaintenanceStatus: ...

    async def storage(self) -> Storage: ...

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]: ...

    async def cleanup_candidates(self) -> CleanupSummary: ...

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport: ...


class Opener(Protocol):
    """Opens the data source. `read_only` is also enforced by the database session."""

    def __call__(self, *, read_only: bool) -> AbstractAsyncContextManager[DataSource]: ...
