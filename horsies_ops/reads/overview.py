"""Numbers about the whole system: the overview, queues, throughput, errors and increments of Prometheus counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import RecoveryStore
from horsies_ops.reads.search import Count
from horsies_ops.reads.stale import StaleCounts, count_stale

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

# Rows that one statement counts: the overview must stay fast on tables with millions of rows.
MAX_STATUS_COUNTED: Final = 20_000
MAX_FAILED_COUNTED: Final = 200_000
MAX_RUNS_COUNTED: Final = 10_000
MAX_PER_BUCKET: Final = 5_000
MAX_PER_QUEUE_BUCKET: Final = 2_000
MAX_TIMED_TASKS: Final = 5_000
MAX_PER_ERROR_CODE: Final = 2_000
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of the whole system; all ages refer to `at`, by the database clock."""

    at: datetime
    counts: Mapping[str, Count]
    """By status, all seven; finished tasks are estimated if there are very many."""
    queues: tuple[QueueRow, ...]
    done_last_minute: int
    """Finished without failing; extrapolated if there were very many."""
    failed_last_minute: int
    failed_last_hour: Count
    failed_last_day: Count
    expired_last_day: Count
    delayed: int
    """PENDING tasks that are not due yet; also included in `counts`."""
    oldest_due: timedelta | None
    next_due: timedelta | None
    """Time until the next delayed task is due."""
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    stale_claimed: int
    """Stale CLAIMED tasks, including those that outage grace holds back."""
    stale_running: int
    """Stale RUNNING tasks, including those that outage grace holds back."""
    workers: Mapping[str, int]
    """By state."""
    workflows: Mapping[str, Count]
    """By status."""
    slots: int
    """Processes of live workers."""
    running: int

    @property
    def stale(self) -> int:
        return self.stale_claimed + self.stale_running


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """Unsuccessful tasks with the same name, error code and status."""

    name: str
    code: str
    status: str
    count: int
    last_hour: int


class OwnedCounts(NamedTuple):
    """Claimed and running tasks, and the processes of live workers."""

    at: datetime
    claimed: int
    running: int
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    slots: int


class StatusCount(NamedTuple):
    """Number of tasks with a status, according to one source: table, with_error_code, failed or planner."""

    source: str
    status: str
    number: int


class NamedNumber(NamedTuple):
    """Number of workers in a state, or of runs with a status."""

    name: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputBucket:
    """Tasks that completed or failed in the interval that starts `at`."""

    at: datetime
    done: int
    failed: int
    """Always exact."""
    is_estimate: bool = False
    """So many tasks finished that `done` is extrapolated."""


class RecentFailures(NamedTuple):
    """Failed tasks of the last hour and day; at most MAX_FAILED_COUNTED are counted."""

    last_hour: int
    last_day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBucket(ThroughputBucket):
    """Tasks of one queue that finished in the interval that starts `at`."""

    queue: str
    longest_wait: timedelta | None
    """None if none of them had started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePercentiles:
    """Wait and run time of the last attempt of recently finished tasks."""

    wait_p50: timedelta | None
    wait_p95: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Buckets from oldest to newest, the last still incomplete, and times of the tasks that finished last."""

    buckets: tuple[ThroughputBucket, ...]
    times: TimePercentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQueries:
    owned_counts: Query[OwnedCounts]
    status_counts: Query[StatusCount]
    recent_failures: Query[RecentFailures]
    worker_states: Query[NamedNumber]
    run_statuses: Query[NamedNumber]
    throughput_buckets: Query[ThroughputBucket]
    queue_buckets: Query[QueueBucket]
    time_percentiles: Query[TimePercentiles]
    error_counts: Query[ErrorCount]


OVERVIEW = load_queries(OverviewQueries, "horsies_ops.reads", "overview")


async def overview(ops: Ops) -> Overview:
    """Return the state of the whole system, read in one transaction, so that all ages refer to the same instant."""
    # Outside the transaction: they yield numbers but no ages.
    fleet = await RecoveryStore(ops.reader).fleet()
    stale = await count_stale(ops, fleet)
    return await ops.reader.run(lambda transaction: _read_overview(transaction, stale, fleet.responsive_ids))


async def _read_overview(transaction: Transaction, stale: StaleCounts, responsive_ids: Sequence[UUID]) -> Overview:
    (owned,) = await transaction.fetch(OVERVIEW.owned_counts, responsive_ids)
    errors = await transaction.fetch(OVERVIEW.error_counts, DAY, MAX_PER_ERROR_CODE)
    queues = tuple(await transaction.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED, responsive_ids))
    # One more than the limit, to see whether there are more.
    status_counts = await transaction.fetch(OVERVIEW.status_counts, MAX_STATUS_COUNTED + 1, MAX_FAILED_COUNTED + 1)
    (failures,) = await transaction.fetch(OVERVIEW.recent_failures, MAX_FAILED_COUNTED + 1)
    runs = await transaction.fetch(OVERVIEW.run_statuses, MAX_RUNS_COUNTED + 1)
    finished = sum(queue.finished_last_minute for queue in queues)
    failed = sum(queue.failed_last_minute for queue in queues)
    return Overview(
        at=owned.at,
        counts=_task_counts(owned, queues, status_counts),
        queues=queues,
        done_last_minute=finished - failed,
        failed_last_minute=failed,
        failed_last_hour=_capped(failures.last_hour, MAX_FAILED_COUNTED),
        failed_last_day=_capped(failures.last_day, MAX_FAILED_COUNTED),
        expired_last_day=_error_total(errors, TaskStatus.EXPIRED),
        delayed=sum(queue.delayed for queue in queues),
        oldest_due=max(_not_none(queue.oldest_due_age for queue in queues), default=None),
        next_due=min(_not_none(queue.next_due_in for queue in queues), default=None),
        oldest_claimed=owned.oldest_claimed,
        longest_running=owned.longest_running,
        stale_claimed=stale.claimed,
        stale_running=stale.running,
        workers={row.name: row.number for row in await transaction.fetch(OVERVIEW.worker_states)},
        workflows={run.name: _capped(run.number, MAX_RUNS_COUNTED) for run in runs},
        slots=owned.slots,
        running=owned.running,
    )


def _task_counts(
    owned: OwnedCounts, queues: Sequence[QueueRow], status_counts: Sequence[StatusCount]
) -> dict[str, Count]:
    return {
        TaskStatus.PENDING: Count(number=sum(queue.pending + queue.delayed for queue in queues)),
        TaskStatus.CLAIMED: Count(number=owned.claimed),
        TaskStatus.RUNNING: Count(number=owned.running),
        **{status: _finished_count(status, status_counts) for status in TaskStatus if status in TASK_TERMINAL_STATES},
    }


def _finished_count(status: TaskStatus, counts: Sequence[StatusCount]) -> Count:
    """Return the best number: exact from a source that was read completely, else the planner's estimate."""
    numbers = {(row.source, row.status): row.number for row in counts}
    if status is TaskStatus.FAILED and numbers["failed", status] <= MAX_FAILED_COUNTED:
        return Count(number=numbers["failed", status])
    # COMPLETED tasks have no error code.
    for source in ("table",) if status is TaskStatus.COMPLETED else ("table", "with_error_code"):
        if sum(row.number for row in counts if row.source == source) <= MAX_STATUS_COUNTED:
            return Count(number=numbers.get((source, status), 0))
    if any(row.source == "planner" for row in counts):
        return Count(number=numbers.get(("planner", status), 0), is_estimate=True)
    return Count(number=numbers.get(("table", status), 0), is_capped=True)


def _capped(number: int, limit: int) -> Count:
    """Return a number that was counted up to one more than the limit."""
    return Count(number=min(number, limit), is_capped=number > limit)


def _error_total(errors: Sequence[ErrorCount], status: TaskStatus) -> Count:
    """Sum the errors with a status; capped if one of their codes reached the limit of the query."""
    counted = Counter[str]()
    for error in errors:
        counted[error.code] += error.count
    found = [error for error in errors if error.status == status]
    is_capped = any(counted[error.code] >= MAX_PER_ERROR_CODE for error in found)
    return Count(number=sum(error.count for error in found), is_capped=is_capped)


def _not_none(ages: Iterable[timedelta | None]) -> list[timedelta]:
    return [age for age in ages if age is not None]


# Throughput and errors


async def throughput(ops: Ops, window: timedelta, buckets: int = 30) -> Throughput:
    """Return the throughput of the last `window`; `done` is extrapolated for buckets with very many tasks."""
    rows = await ops.reader.fetch(OVERVIEW.throughput_buckets, *_bucket_arguments(window, buckets, MAX_PER_BUCKET))
    (times,) = await ops.reader.fetch(OVERVIEW.time_percentiles, window, MAX_TIMED_TASKS)
    return Throughput(buckets=tuple(rows), times=times)


async def queue_throughput(ops: Ops, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
    """Return the throughput by queue, in the same buckets; buckets in which no task finished are left out."""
    arguments = _bucket_arguments(window, buckets, MAX_PER_QUEUE_BUCKET)
    return tuple(await ops.reader.fetch(OVERVIEW.queue_buckets, *arguments))


def _bucket_arguments(window: timedelta, buckets: int, limit: int) -> tuple[timedelta, int, int]:
    if buckets < 1:
        raise ValueError(f"buckets must be at least 1, got {buckets}")
    return window / buckets, buckets, limit


async def error_summary(ops: Ops, window: timedelta) -> tuple[ErrorCount, ...]:
    """Return errors of the last `window`, most frequent first; only the newest tasks of each code are counted."""
    return tuple(await ops.reader.fetch(OVERVIEW.error_counts, window, MAX_PER_ERROR_CODE))


# Increments of the Prometheus counters


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterIncrements:
    """What happened up to `until`, since the previous read."""

    until: datetime
    finished: tuple[FinishedCount, ...] = ()
    durations: tuple[DurationBucket, ...] = ()
    events: tuple[EventCount, ...] = ()


class FinishedCount(NamedTuple):
    queue: str
    status: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationBucket:
    """Attempts whose duration fell between two bounds; index 0 is below the first bound."""

    index: int
    attempts: int
    total_s: float


class EventCount(NamedTuple):
    kind: str
    decision: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterQueries:
    cutoff: Query[datetime]
    finished: Query[FinishedCount]
    durations: Query[DurationBucket]
    events: Query[EventCount]


COUNTERS = load_queries(CounterQueries, "horsies_ops.reads", "counters")


async def read_increments(
    database: Database, *, since: datetime | None, bucket_bounds_s: Sequence[float]
) -> CounterIncrements:
    """Return what happened since the `until` of the previous call; without `since`, only an `until` to start from.

    Counts no row twice and misses none, even if one of our transactions commits late.
    """

    async def read(transaction: Transaction) -> CounterIncrements:
        until = await transaction.fetch_single(COUNTERS.cutoff)
        # An open transaction may hold the cutoff back; `until` never decreases.
        if since is None or since >= until:
            return CounterIncrements(until=since or until)
        interval = (since, until)
        return CounterIncrements(
            until=until,
            finished=tuple(await transaction.fetch(COUNTERS.finished, *interval)),
            durations=tuple(await transaction.fetch(COUNTERS.durations, *interval, list(bucket_bounds_s))),
            events=tuple(await transaction.fetch(COUNTERS.events, *interval)),
        )

    return await database.run(read)


# Queues


MAX_FINISHED_COUNTED: Final = 20_000
"""Most rows counted for the last minute; beyond that the number of tasks that did not fail is extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue. Priority and limit are those published by the most recently seen worker, None without one."""

    name: str
    priority: int | None
    max_concurrency: int | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    pending: int
    """Due and not claimed yet."""
    delayed: int
    """Not due yet."""
    claimed: int
    running: int
    oldest_due_age: timedelta | None
    next_due_in: timedelta | None
    finished_last_minute: int
    """With any outcome; see `is_estimate`."""
    failed_last_minute: int
    """Always exact."""
    served_by: int
    """Number of workers that respond and serve it."""
    is_estimate: bool = False
    """So many tasks finished in the last minute that the number of those that did not fail is extrapolated."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReadQueries:
    list: Query[QueueRow]
    has_work: Query[bool]


QUEUE_READS = load_queries(QueueReadQueries, "horsies_ops.reads", "queues")


async def list_queues(ops: Ops) -> tuple[QueueRow, ...]:
    """Return every queue that a task, a worker or a pause mentions, by priority."""
    fleet = await RecoveryStore(ops.reader).fleet()
    return tuple(await ops.reader.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED, fleet.responsive_ids))


async def has_work(ops: Ops, queues: Sequence[str]) -> bool:
    """Whether tasks of these queues are due, waiting for a retry or in flight, or workflow runs have to advance.

    Delayed tasks and due tasks of paused queues do not count.
    """
    return await ops.reader.fetch_single(QUEUE_READS.has_work, list(queues))
