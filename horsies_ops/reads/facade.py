"""Everything that operators can look at, in one place."""

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
    from horsies_ops.reads import (
        events,
        overview,
        queues,
        schedules,
        workers,
    )
    from horsies_ops.reads import (
        events as following,
    )
    from horsies_ops.reads import (
        filters as lookup,
    )
    from horsies_ops.reads import (
        live as listening,
    )
    from horsies_ops.reads import (
        overview as throughput,
    )
    from horsies_ops.reads import (
        server as clock,
    )
    from horsies_ops.reads import (
        server as status,
    )
    from horsies_ops.reads import (
        stale as verdicts,
    )
    from horsies_ops.reads import (
        tasks as beats,
    )
    from horsies_ops.reads import (
        tasks as payloads,
    )
    from horsies_ops.reads import (
        workers as roll_call,
    )
    from horsies_ops.reads import (
        workers as upkeep,
    )
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.search import Count, Facets
else:
    beats = LazyModule("horsies_ops.reads.tasks")
    clock = LazyModule("horsies_ops.reads.server")
    events = LazyModule("horsies_ops.reads.events")
    following = LazyModule("horsies_ops.reads.events")
    listening = LazyModule("horsies_ops.reads.live")
    lookup = LazyModule("horsies_ops.reads.filters")
    overview = LazyModule("horsies_ops.reads.overview")
    payloads = LazyModule("horsies_ops.reads.tasks")
    queues = LazyModule("horsies_ops.reads.queues")
    roll_call = LazyModule("horsies_ops.reads.workers")
    schedules = LazyModule("horsies_ops.reads.schedules")
    status = LazyModule("horsies_ops.reads.server")
    throughput = LazyModule("horsies_ops.reads.overview")
    upkeep = LazyModule("horsies_ops.reads.workers")
    verdicts = LazyModule("horsies_ops.reads.stale")
    workers = LazyModule("horsies_ops.reads.workers")

DEFAULT_SWEEP_OPTIONS: Final = SweepOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsReads:
    """What operators read. Rows are frozen values, durations are `timedelta`; a failure raises `HorsiesError`."""

    reader: Database
    """Opens every transaction READ ONLY, whatever else may be done."""
    direct_spec: ConnectionSpec
    """The way past a pooler, to listen."""
    is_embedded: bool
    settings: AppConfig = field(default_factory=AppConfig)
    """What this side was configured with; the fleet may know better."""

    async def database_status(self) -> status.DatabaseStatus:
        """How the database is; needs none of our tables."""
        return await status.database_status(self.reader, embedded=self.is_embedded)

    async def require_current_schema(self) -> None:
        """Raise where the schema is missing, older or newer than this horsies."""
        await status.require_current_schema(self.reader)

    async def database_time(self) -> datetime:
        """What time it is for the database, by which every age is reckoned."""
        return await clock.database_time(self.reader)

    async def measure_latency(self) -> timedelta:
        """How long an answer takes."""
        return await clock.measure_latency(self.reader)

    async def overview(self) -> overview.Overview:
        """The whole system at one glance."""
        return await overview.overview(self.reader, local_config=self.settings.recovery)

    async def list_queues(self) -> tuple[queues.QueueRow, ...]:
        """Every queue that a task, a worker or a pause names, in the order of their priorities."""
        return await queues.list_queues(self.reader)

    async def list_tasks(
        self,
        filter: TaskFilter = tasks.EVERY_TASK,  # noqa: A002  # the documented name
        *,
        order: tasks.TaskOrder = tasks.TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
        max_search_time: timedelta | None = search.SEARCH_TIME_LIMIT,
    ) -> tasks.TaskPage:
        """A page of tasks; give its `next` as `after` for the one that follows.

        What is newer than a task comes from the other order, after that task, and the nearest first. A match may be
        rare: a page that was searched for `within` long without getting full says how far it came in `searched_to`.
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
        """How many tasks match, as far as that can be said in a moment."""
        return await search.count_tasks(self.reader, filter, cap=cap)

    async def facets(self, filter: TaskFilter = tasks.EVERY_TASK) -> Facets:  # noqa: A002
        """What occurs among the newest 10,000 tasks, where they match."""
        return await search.facets(self.reader, filter)

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[tasks.TaskSummary, ...]:
        """These tasks, the newest first; those that are gone are left out."""
        return await tasks.tasks_by_id(self.reader, ids)

    async def last_heartbeats(self, ids: Iterable[UUID]) -> dict[UUID, beats.LastHeartbeat]:
        """The last beat of each of these tasks that is claimed or running."""
        return await beats.last_heartbeats(self.reader, ids)

    async def payload_previews(self, ids: Iterable[UUID]) -> dict[UUID, payloads.PayloadPreview]:
        """What each of these tasks was given, where that is short enough for a list."""
        return await payloads.payload_previews(self.reader, ids)

    async def task(self, task_id: str | UUID) -> tasks.TaskDetail | None:
        """Everything about one task; None where there is none."""
        return await tasks.task_detail(self.reader, task_id, local_config=self.settings.recovery)

    async def tasks_by_short_id(self, short_id: str) -> tuple[lookup.ShortIdMatch, ...]:
        """The tasks whose id ends in these eight digits, among those not yet ended and the newest 10,000."""
        return await lookup.tasks_by_short_id(self.reader, short_id)

    async def runs_by_short_id(self, short_id: str) -> tuple[lookup.ShortIdMatch, ...]:
        """The runs whose id ends in these eight digits, newest first; old runs that have ended are left out."""
        return await lookup.runs_by_short_id(self.reader, short_id)

    async def nearly_stale_tasks(
        self, within: timedelta, options: SweepOptions = DEFAULT_SWEEP_OPTIONS
    ) -> tuple[SweptTask, ...]:
        """Live tasks that are not yet stale, and will be after `within` more of silence."""
        return await verdicts.nearly_stale_tasks(
            self.reader, options, within=within, local_config=self.settings.recovery
        )

    async def silent_tasks(self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> verdicts.SilentTasks | None:
        """Tasks that have missed a beat and that a sweep would not take yet; None where there are none."""
        return await verdicts.silent_tasks(self.reader, options, local_config=self.settings.recovery)

    async def maintenance_status(self) -> upkeep.MaintenanceStatus:
        """What the workers do unasked to keep the house in order, and when they last did."""
        return await upkeep.maintenance_status(self.reader)

    async def count_live_workers(self, *, threshold: timedelta) -> int:
        """How many workers have given a sign of life within `threshold`."""
        return await workers.count_live_workers(self.reader, threshold=threshold)

    async def list_active_workers(self, threshold: timedelta) -> tuple[workers.WorkerRow, ...]:
        """Workers that have not stopped, the newest beat first; stale ones have been silent for `threshold`."""
        return await workers.list_active_workers(self.reader, threshold)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[workers.SnapshotRow, ...]:
        """The load of a worker in the last `window`, the oldest snapshot first."""
        return await workers.worker_history(self.reader, worker_id, window)

    async def list_workflows(
        self,
        filter: workflows.WorkflowFilter = workflows.EVERY_WORKFLOW,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> workflows.WorkflowPage:
        """A page of runs, the newest first; give its `next` as `after` for the one that follows."""
        return await workflows.list_workflows(self.reader, filter, after=after, limit=limit)

    async def workflow(self, workflow_id: str | UUID) -> workflows.WorkflowDetail | None:
        """Everything about one run of a workflow; None where there is none."""
        return await workflows.workflow_detail(self.reader, workflow_id)

    async def list_schedules(
        self, configured: Sequence[TaskSchedule] | None = None
    ) -> tuple[schedules.ScheduleRow, ...]:
        """Every schedule that `configured`, or else the settings, or the database names, the soonest first."""
        ours = self.settings.schedule.schedules if self.settings.schedule is not None else ()
        return await schedules.list_schedules(self.reader, ours if configured is None else configured)

    async def events(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        kinds: Sequence[str] = (),
        task_id: UUID | None = None,
        since: timedelta | None = None,
        limit: int = 100,
    ) -> tuple[events.EventRow, ...]:
        """Events in the order of writing: those next after an id, else the last ones, where given before another."""
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
    ) -> tuple[events.AuditRow, ...]:
        """Actions of operators in the order in which they were begun; `after` and `before` as for events."""
        return await events.audit(self.reader, after=after, before=before, actions=actions, limit=limit)

    async def throughput(self, window: timedelta, buckets: int = 30) -> throughput.Throughput:
        """What was done in the last `window`, and how long it waited and ran."""
        return await throughput.throughput(self.reader, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[throughput.QueueBucket, ...]:
        """The same queue by queue, and how long was waited in each."""
        return await throughput.queue_throughput(self.reader, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[throughput.ErrorCount, ...]:
        """What went wrong in the last `window`, the most frequent first."""
        return await throughput.error_summary(self.reader, window)

    def tail_events(self, *, since: timedelta, kinds: Sequence[str] = ()) -> AsyncGenerator[events.EventRow]:
        """The events of the time past, then each that is written, until the generator is closed."""
        return following.tail_events(self.reader, self.direct_spec, since=since, kinds=kinds)

    async def ping_workers(
        self, *, within: timedelta, worker_id: UUID | None = None, min_responses: int | None = None
    ) -> tuple[WorkerPong, ...]:
        """The workers that answer in time, in the order of their answers."""
        return await roll_call.ping_workers(
            self.direct_spec, timeout_s=within.total_seconds(), worker_id=worker_id, min_responses=min_responses
        )

    def listen(self) -> AsyncGenerator[listening.Change]:
        """Changes as they happen, until the generator is closed; it comes back by itself and says so."""
        return listening.listen(self.reader, self.direct_spec)
