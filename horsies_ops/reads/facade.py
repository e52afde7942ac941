"""Everything that operators can look at, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig
from horsies_ops.lazy_imports import Lazily
from horsies_ops.reads import search, tasks, workflows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.model.result import WorkerPong
    from horsies.model.settings import TaskSchedule
    from horsies.recovery.report import SweptTask
    from horsies.store.connection import Link
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
    beats = Lazily("horsies_ops.reads.tasks")
    clock = Lazily("horsies_ops.reads.server")
    events = Lazily("horsies_ops.reads.events")
    following = Lazily("horsies_ops.reads.events")
    listening = Lazily("horsies_ops.reads.live")
    lookup = Lazily("horsies_ops.reads.filters")
    overview = Lazily("horsies_ops.reads.overview")
    payloads = Lazily("horsies_ops.reads.tasks")
    queues = Lazily("horsies_ops.reads.queues")
    roll_call = Lazily("horsies_ops.reads.workers")
    schedules = Lazily("horsies_ops.reads.schedules")
    status = Lazily("horsies_ops.reads.server")
    throughput = Lazily("horsies_ops.reads.overview")
    upkeep = Lazily("horsies_ops.reads.workers")
    verdicts = Lazily("horsies_ops.reads.stale")
    workers = Lazily("horsies_ops.reads.workers")

AS_THE_FLEET: Final = SweepOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What operators read. Rows are frozen values, durations are `timedelta`; a failure raises `HorsiesError`."""

    reading: Database
    """Opens every transaction READ ONLY, whatever else may be done."""
    direct: Link
    """The way past a pooler, to listen."""
    is_embedded: bool
    settings: AppConfig = field(default_factory=AppConfig)
    """What this side was configured with; the fleet may know better."""

    async def database_status(self) -> status.DatabaseStatus:
        """How the database is; needs none of our tables."""
        return await status.database_status(self.reading, embedded=self.is_embedded)

    async def refuse_unless_current(self) -> None:
        """Raise where the schema is missing, older or newer than this horsies."""
        await status.refuse_unless_current(self.reading)

    async def clock(self) -> datetime:
        """What time it is for the database, by which every age is reckoned."""
        return await clock.clock(self.reading)

    async def ping(self) -> timedelta:
        """How long an answer takes."""
        return await clock.ping(self.reading)

    async def overview(self) -> overview.Overview:
        """The whole system at one glance."""
        return await overview.overview(self.reading, local=self.settings.recovery)

    async def list_queues(self) -> tuple[queues.QueueRow, ...]:
        """Every queue that a task, a worker or a pause names, in the order of their priorities."""
        return await queues.list_queues(self.reading)

    async def list_tasks(
        self,
        filter: TaskFilter = tasks.EVERY_TASK,  # noqa: A002  # the documented name
        *,
        order: tasks.Order = tasks.Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
        within: timedelta | None = search.SEARCHED_FOR,
    ) -> tasks.TaskPage:
        """A page of tasks; give its `next` as `after` for the one that follows.

        What is newer than a task comes from the other order, after that task, and the nearest first. A match may be
        rare: a page that was searched for `within` long without getting full says how far it came in `searched_to`.
        """
        return await tasks.list_tasks(self.reading, filter, order=order, after=after, limit=limit, within=within)

    async def count_tasks(
        self,
        filter: TaskFilter = tasks.EVERY_TASK,  # noqa: A002
        *,
        cap: int = search.MOST_COUNTED,
    ) -> Count:
        """How many tasks match, as far as that can be said in a moment."""
        return await search.count_tasks(self.reading, filter, cap=cap)

    async def facets(self, filter: TaskFilter = tasks.EVERY_TASK) -> Facets:  # noqa: A002
        """What occurs among the newest 10,000 tasks, where they match."""
        return await search.facets(self.reading, filter)

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[tasks.TaskSummary, ...]:
        """These tasks, the newest first; those that are gone are left out."""
        return await tasks.tasks_by_id(self.reading, ids)

    async def beats_of(self, ids: Iterable[UUID]) -> dict[UUID, beats.LastBeat]:
        """The last beat of each of these tasks that is claimed or running."""
        return await beats.beats_of(self.reading, ids)

    async def payloads_of(self, ids: Iterable[UUID]) -> dict[UUID, payloads.Payload]:
        """What each of these tasks was given, where that is short enough for a list."""
        return await payloads.payloads_of(self.reading, ids)

    async def task(self, task_id: str | UUID) -> tasks.TaskDetail | None:
        """Everything about one task; None where there is none."""
        return await tasks.task_detail(self.reading, task_id, local=self.settings.recovery)

    async def tasks_ending(self, short_form: str) -> tuple[lookup.Found, ...]:
        """The tasks whose id ends in these eight digits, among those not yet ended and the newest 10,000."""
        return await lookup.tasks_ending(self.reading, short_form)

    async def runs_ending(self, short_form: str) -> tuple[lookup.Found, ...]:
        """The runs whose id ends in these eight digits, newest first; old runs that have ended are left out."""
        return await lookup.runs_ending(self.reading, short_form)

    async def near_limit(self, within: timedelta, options: SweepOptions = AS_THE_FLEET) -> tuple[SweptTask, ...]:
        """Live tasks that are not yet stale, and will be after `within` more of silence."""
        return await verdicts.near_limit(self.reading, options, within=within, local=self.settings.recovery)

    async def not_yet_stale(self, options: SweepOptions = AS_THE_FLEET) -> verdicts.Silent | None:
        """Tasks that have missed a beat and that a sweep would not take yet; None where there are none."""
        return await verdicts.not_yet_stale(self.reading, options, local=self.settings.recovery)

    async def upkeep(self) -> upkeep.Upkeep:
        """What the workers do unasked to keep the house in order, and when they last did."""
        return await upkeep.upkeep(self.reading)

    async def live_workers(self, *, threshold: timedelta) -> int:
        """How many workers have given a sign of life within `threshold`."""
        return await workers.live_workers(self.reading, threshold=threshold)

    async def list_active_workers(self, threshold: timedelta) -> tuple[workers.WorkerRow, ...]:
        """Workers that have not stopped, the newest beat first; stale ones have been silent for `threshold`."""
        return await workers.list_active_workers(self.reading, threshold)

    async def worker_history(self, worker_id: str | UUID, window: timedelta) -> tuple[workers.Snapshot, ...]:
        """The load of a worker in the last `window`, the oldest snapshot first."""
        return await workers.worker_history(self.reading, worker_id, window)

    async def list_workflows(
        self,
        filter: workflows.WorkflowFilter = workflows.EVERY_WORKFLOW,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> workflows.WorkflowPage:
        """A page of runs, the newest first; give its `next` as `after` for the one that follows."""
        return await workflows.list_workflows(self.reading, filter, after=after, limit=limit)

    async def workflow(self, workflow_id: str | UUID) -> workflows.WorkflowDetail | None:
        """Everything about one run of a workflow; None where there is none."""
        return await workflows.workflow_detail(self.reading, workflow_id)

    async def list_schedules(
        self, configured: Sequence[TaskSchedule] | None = None
    ) -> tuple[schedules.ScheduleRow, ...]:
        """Every schedule that `configured`, or else the settings, or the database names, the soonest first."""
        ours = self.settings.schedule.schedules if self.settings.schedule is not None else ()
        return await schedules.list_schedules(self.reading, ours if configured is None else configured)

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
            self.reading, after=after, before=before, kinds=kinds, task_id=task_id, since=since, limit=limit
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
        return await events.audit(self.reading, after=after, before=before, actions=actions, limit=limit)

    async def throughput(self, window: timedelta, buckets: int = 30) -> throughput.Throughput:
        """What was done in the last `window`, and how long it waited and ran."""
        return await throughput.throughput(self.reading, window, buckets)

    async def queue_throughput(self, window: timedelta, buckets: int = 30) -> tuple[throughput.QueueBucket, ...]:
        """The same queue by queue, and how long was waited in each."""
        return await throughput.queue_throughput(self.reading, window, buckets)

    async def error_summary(self, window: timedelta) -> tuple[throughput.ErrorCount, ...]:
        """What went wrong in the last `window`, the most frequent first."""
        return await throughput.error_summary(self.reading, window)

    def follow(self, *, since: timedelta, kinds: Sequence[str] = ()) -> AsyncGenerator[events.EventRow]:
        """The events of the time past, then each that is written, until the generator is closed."""
        return following.follow(self.reading, self.direct, since=since, kinds=kinds)

    async def ping_workers(
        self, *, within: timedelta, worker_id: UUID | None = None, enough: int | None = None
    ) -> tuple[WorkerPong, ...]:
        """The workers that answer in time, in the order of their answers."""
        return await roll_call.ping_workers(
            self.direct, timeout_s=within.total_seconds(), worker_id=worker_id, enough=enough
        )

    def listen(self) -> AsyncGenerator[listening.Change]:
        """Changes as they happen, until the generator is closed; it comes back by itself and says so."""
        return listening.listen(self.reading, self.direct)
