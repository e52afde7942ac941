"""`OpsReads`: the reads of `Ops`, each a call into the module that implements it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig
from horsies_ops.lazy_imports import LazyModule
from horsies_ops.reads import search, tasks, workflows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.model.result import WorkerPong
    from horsies.model.settings import TaskSchedule
    from horsies.recovery.report import SweptTask
    from horsies.store.connection import ConnectionSpec
    from horsies.store.database import Database
    from horsies_ops.reads import events, live, overview, queues, schedules, server, stale, workers
    from horsies_ops.reads.changes import Change
    from horsies_ops.reads.events import AuditRow, EventRow
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.overview import ErrorCount, Overview, QueueBucket, Throughput
    from horsies_ops.reads.queues import QueueRow
    from horsies_ops.reads.schedules import ScheduleRow
    from horsies_ops.reads.search import Count, Facets, ShortIdMatch
    from horsies_ops.reads.server import DatabaseStatus
    from horsies_ops.reads.stale import SilentTasks
    from horsies_ops.reads.tasks import LastHeartbeat, PayloadPreview, TaskDetail, TaskOrder, TaskPage, TaskSummary
    from horsies_ops.reads.workers import MaintenanceStatus, SnapshotRow, WorkerRow
    from horsies_ops.reads.workflows import WorkflowDetail, WorkflowFilter, WorkflowPage
else:
    events = LazyModule("horsies_ops.reads.events")
    live = LazyModule("horsies_ops.reads.live")
    overview = LazyModule("horsies_ops.reads.overview")
    queues = LazyModule("horsies_ops.reads.queues")
    schedules = LazyModule("horsies_ops.reads.schedules")
    server = LazyModule("horsies_ops.reads.server")
    stale = LazyModule("horsies_ops.reads.stale")
    workers = LazyModule("horsies_ops.reads.workers")

DEFAULT_SWEEP_OPTIONS: Final = SweepOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsReads:
    """Reads of operators. Rows are frozen values, durations are `timedelta`; failures raise `HorsiesError`."""

    reader: Database
    """Pool that opens every transaction READ ONLY."""
    direct_spec: ConnectionSpec
    """For LISTEN, which bypasses a pooler."""
    is_embedded: bool
    settings: AppConfig = field(default_factory=AppConfig)
    """The settings of this process; those of live workers take precedence for recovery."""

    # Server

    async def database_status(self) -> DatabaseStatus:
        """Return version, schema, connections and tables; needs none of our tables."""
        return await server.database_status(self.reader, embedded=self.is_embedded)

    async def require_current_schema(self) -> None:
        """Raise if the schema is missing, older or newer than this horsies."""
        await server.require_current_schema(self.reader)

    async def database_time(self) -> datetime:
        """Return the time of the database clock, which all ages refer to."""
        return await server.database_time(self.reader)

    async def measure_latency(self) -> timedelta:
        """Return the duration of one round trip to the database."""
        return await server.measure_latency(self.reader)

    # System

    async def overview(self) -> Overview:
        """Return the state of the whole system."""
        return await overview.overview(self.reader, local_config=self.settings.recovery)

    async def throughput(self, window: timedelta, buckets: int = 30) -> Throughput:
        """Return what finished in the last `window`, and how long it waited and ran."""
        return await overview.throughput(self.reader, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
        """Return what finished in the last `window` by queue, and the longest wait."""
        return await overview.queue_throughput(self.reader, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[ErrorCount, ...]:
        """Return the errors of the last `window`, most frequent first."""
        return await overview.error_summary(self.reader, window)

    async def list_queues(self) -> tuple[QueueRow, ...]:
        """Return every queue that a task, a worker or a pause mentions, by priority."""
        return await queues.list_queues(self.reader)

    async def list_schedules(self, configured: Sequence[TaskSchedule] | None = None) -> tuple[ScheduleRow, ...]:
        """Return all stored schedules and those in `configured` [default: from the settings], next run first."""
        from_settings = self.settings.schedule.schedules if self.settings.schedule is not None else ()
        return await schedules.list_schedules(self.reader, from_settings if configured is None else configured)

    # Tasks

    async def list_tasks(
        self,
        filter: TaskFilter = tasks.EVERY_TASK,  # noqa: A002  # the documented name
        *,
        order: TaskOrder = tasks.TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
        max_search_time: timedelta | None = search.SEARCH_TIME_LIMIT,
    ) -> TaskPage:
        """Return a page of tasks; pass its `next` as `after` to get the following page.

        For tasks newer than a given one, use the opposite order with that task as `after`. If matches are rare, the
        search ends after `max_search_time` with an incomplete page, whose `searched_to` says how far it got.
        """
        return await tasks.list_tasks(
            self.reader, filter, order=order, after=after, limit=limit, max_search_time=max_search_time
        )

    async def count_tasks(
        self,
        filter: TaskFilter = tasks.EVERY_TASK,  # noqa: A002
        *,
        cap: int = search.MAX_COUNTED,
    ) -> Count:
        """Count matching tasks: exactly up to `cap`, or what was found within a second."""
        return await search.count_tasks(self.reader, filter, cap=cap)

    async def facets(self, filter: TaskFilter = tasks.EVERY_TASK) -> Facets:  # noqa: A002
        """Count the values that occur among the newest 10,000 tasks, as far as they match."""
        return await search.facets(self.reader, filter)

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        """Return these tasks, newest first, without those that no longer exist."""
        return await tasks.tasks_by_id(self.reader, ids)

    async def tasks_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]:
        """Return tasks whose id ends in `short_id`, among the unfinished and the newest 10,000."""
        return await search.tasks_by_short_id(self.reader, short_id)

    async def last_heartbeats(self, ids: Iterable[UUID]) -> dict[UUID, LastHeartbeat]:
        """Return the last heartbeat of each of these tasks that is claimed or running."""
        return await tasks.last_heartbeats(self.reader, ids)

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, PayloadPreview]:
        """Return the arguments of these tasks, if they are short enough for a list."""
        return await tasks.payload_previews(self.reader, ids)

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        """Return everything about one task, None if it does not exist."""
        return await tasks.task_detail(self.reader, task_id, local_config=self.settings.recovery)

    async def nearly_stale_tasks(
        self, within: timedelta, options: SweepOptions = DEFAULT_SWEEP_OPTIONS
    ) -> tuple[SweptTask, ...]:
        """Return tasks that become stale if they stay silent for `within` longer."""
        return await stale.nearly_stale_tasks(self.reader, options, within=within, local_config=self.settings.recovery)

    async def silent_tasks(self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> SilentTasks | None:
        """Summarize tasks that missed a heartbeat but are not stale yet; None if there are none."""
        return await stale.silent_tasks(self.reader, options, local_config=self.settings.recovery)

    # Workers

    async def count_live_workers(self, *, threshold: timedelta) -> int:
        """Count the workers that sent a heartbeat within `threshold`."""
        return await workers.count_live_workers(self.reader, threshold=threshold)

    async def list_active_workers(self, threshold: timedelta) -> tuple[WorkerRow, ...]:
        """Return workers that have not stopped, newest heartbeat first; `is_stale` means silent for `threshold`."""
        return await workers.list_active_workers(self.reader, threshold)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
        """Return the snapshots of a worker in the last `window`, oldest first."""
        return await workers.worker_history(self.reader, worker_id, window)

    async def ping_workers(
        self, *, within: timedelta, worker_id: UUID | None = None, min_responses: int | None = None
    ) -> tuple[WorkerPong, ...]:
        """Return the workers that answer in time, in order of their answers."""
        return await workers.ping_workers(
            self.direct_spec, timeout_s=within.total_seconds(), worker_id=worker_id, min_responses=min_responses
        )

    async def maintenance_status(self) -> MaintenanceStatus:
        """Return the automatic maintenance of the live workers, and when it last ran."""
        return await workers.maintenance_status(self.reader)

    # Workflows

    async def list_workflows(
        self,
        filter: WorkflowFilter = workflows.EVERY_WORKFLOW,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        """Return a page of runs, newest first; pass its `next` as `after` to get the following page."""
        return await workflows.list_workflows(self.reader, filter, after=after, limit=limit)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        """Return everything about one run, None if it does not exist."""
        return await workflows.workflow_detail(self.reader, workflow_id)

    async def runs_by_short_id(self, short_id: str) -> tuple[ShortIdMatch, ...]:
        """Return runs whose id ends in `short_id`, newest first; old finished runs are not searched."""
        return await search.runs_by_short_id(self.reader, short_id)

    # Events and changes

    async def events(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        kinds: Sequence[str] = (),
        task_id: UUID | None = None,
        since: timedelta | None = None,
        limit: int = 100,
    ) -> tuple[EventRow, ...]:
        """Return events in id order: the first after id `after`, else the last, or the last before id `before`."""
        return await events.events(
            self.reader, after=after, before=before, kinds=kinds, task_id=task_id, since=since, limit=limit
        )

    async def audit(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        actions: Sequence[str] = (),
        limit: int = 100,
    ) -> tuple[AuditRow, ...]:
        """Return audit entries in the order of their start; `after` and `before` work as in `events`."""
        return await events.audit(self.reader, after=after, before=before, actions=actions, limit=limit)

    def tail_events(self, *, since: timedelta, kinds: Sequence[str] = ()) -> AsyncGenerator[EventRow]:
        """Yield the events of the last `since`, then every new one, until the generator is closed."""
        return events.tail_events(self.reader, self.direct_spec, since=since, kinds=kinds)

    def listen(self) -> AsyncGenerator[Change]:
        """Yield changes as they happen, until the generator is closed; reconnects by itself."""
        return live.listen(self.reader, self.direct_spec)
