"""The whole system at one glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from horsies.model.settings import RecoveryConfig
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries
from horsies_ops.reads.queues import MAX_FINISHED_COUNTED, QUEUE_READS, QueueRow
from horsies_ops.reads.search import Count
from horsies_ops.reads.stale import StaleCounts, count_stale

# How much is done, how long it takes, and what goes wrong, over a stretch of time.

MAX_PER_BUCKET: Final = 2_000
MAX_TIMED_TASKS: Final = 5_000
MAX_PER_ERROR_CODE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputBucket:
    """A stretch of time that begins `at`; `done` tasks completed in it, `failed` ones failed."""

    at: datetime
    done: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBucket:
    """The same for one queue, where anything of it ended; `longest_wait` is None where nothing of that had begun."""

    queue: str
    at: datetime
    done: int
    failed: int
    longest_wait: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePercentiles:
    """How long tasks waited and ran in their last attempt: half of them at most p50, nearly all at most p95."""

    wait_p50: timedelta | None
    wait_p95: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Buckets from the oldest on, the last one still open, and the times of what ended last in the window."""

    buckets: tuple[ThroughputBucket, ...]
    times: TimePercentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How many tasks of one name ended in one way, and how many of them within the last hour."""

    name: str
    code: str
    status: str
    count: int
    last_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputQueries:
    buckets: Query[ThroughputBucket]
    queues: Query[QueueBucket]
    times: Query[TimePercentiles]
    errors: Query[ErrorCount]


THROUGHPUT = load_queries(ThroughputQueries, "horsies_ops.reads", "throughput")


async def throughput(database: Database, window: timedelta, buckets: int = 30) -> Throughput:
    """What was done in the last `window`; a bucket with very many tasks is reckoned from a part of it."""
    rows = await database.fetch(THROUGHPUT.buckets, *_parts(window, buckets))
    (times,) = await database.fetch(THROUGHPUT.times, window, MAX_TIMED_TASKS)
    return Throughput(buckets=tuple(rows), times=times)


async def queue_throughput(database: Database, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
    """The same queue by queue, on the same boundaries; buckets in which nothing ended are left out."""
    return tuple(await database.fetch(THROUGHPUT.queues, *_parts(window, buckets)))


def _parts(window: timedelta, buckets: int) -> tuple[timedelta, int, int]:
    if buckets < 1:
        raise ValueError("buckets must be at least 1")
    return window / buckets, buckets, MAX_PER_BUCKET


async def error_summary(database: Database, window: timedelta) -> tuple[ErrorCount, ...]:
    """What went wrong in the last `window`, the most frequent first; of each code only the newest are counted."""
    return tuple(await database.fetch(THROUGHPUT.errors, window, MAX_PER_ERROR_CODE))


MAX_ENDED_COUNTED: Final = 20_000
DAY: Final = timedelta(days=1)
MAX_RUNS_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What an operator looks at first; every age is by the database's clock at the moment `at`."""

    at: datetime
    counts: Mapping[str, Count]
    """By status, all seven; ended tasks are estimated in a large table."""
    queues: tuple[QueueRow, ...]
    done_last_minute: int
    """Ended without failing."""
    failed_last_minute: int
    failed_last_hour: Count
    failed_last_day: Count
    expired_last_day: Count
    delayed: int
    """PENDING tasks that are not yet due; `counts` has them too."""
    oldest_due: timedelta | None
    next_due: timedelta | None
    """Until the soonest delayed task is due."""
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    stale_claimed: int
    """That a sweep would settle, or that outage grace holds back; the same for those running."""
    stale_running: int
    workers: Mapping[str, int]
    """By state."""
    workflows: Mapping[str, Count]
    """By status."""
    slots: int
    """Processes of the workers that beat."""
    running: int

    @property
    def stale(self) -> int:
        """Live tasks that have been silent for longer than their threshold."""
        return self.stale_claimed + self.stale_running


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCounts:
    at: datetime
    claimed: int
    running: int
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCount:
    source: str
    status: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStateCount:
    state: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusCount:
    status: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQueries:
    live: Query[LiveCounts]
    ended: Query[EndedCount]
    workers: Query[WorkerStateCount]
    workflows: Query[RunStatusCount]


OVERVIEW = load_queries(OverviewQueries, "horsies_ops.reads", "overview")


async def overview(database: Database, *, local_config: RecoveryConfig | None = None) -> Overview:
    """The whole system, read in one transaction, so that ages share one instant.

    What is stale is for the decision to say, which goes by `local` where no worker lives.
    """
    stale = await count_stale(database, local_config=local_config or RecoveryConfig())
    return await database.run(lambda transaction: _read_overview(transaction, stale))


async def _read_overview(transaction: Transaction, stale: StaleCounts) -> Overview:
    (live,) = await transaction.fetch(OVERVIEW.live)
    errors = await transaction.fetch(THROUGHPUT.errors, DAY, MAX_PER_ERROR_CODE)
    queues = tuple(await transaction.fetch(QUEUE_READS.list, MAX_FINISHED_COUNTED))
    ended = await transaction.fetch(OVERVIEW.ended, MAX_ENDED_COUNTED + 1)
    runs = await transaction.fetch(OVERVIEW.workflows, MAX_RUNS_COUNTED + 1)
    finished, failed = sum(q.finished_last_minute for q in queues), sum(q.failed_last_minute for q in queues)
    return Overview(
        at=live.at,
        counts=_counts(live, queues, ended),
        queues=queues,
        done_last_minute=finished - failed,
        failed_last_minute=failed,
        failed_last_hour=_errors(errors, TaskStatus.FAILED, attrgetter("last_hour")),
        failed_last_day=_errors(errors, TaskStatus.FAILED, attrgetter("count")),
        expired_last_day=_errors(errors, TaskStatus.EXPIRED, attrgetter("count")),
        delayed=sum(queue.delayed for queue in queues),
        oldest_due=max(_given(queue.oldest_due_age for queue in queues), default=None),
        next_due=min(_given(queue.next_due_in for queue in queues), default=None),
        oldest_claimed=live.oldest_claimed,
        longest_running=live.longest_running,
        stale_claimed=stale.claimed,
        stale_running=stale.running,
        workers={each.state: each.number for each in await transaction.fetch(OVERVIEW.workers)},
        workflows={run.status: _capped(run.number, MAX_RUNS_COUNTED) for run in runs},
        slots=live.slots,
        running=live.running,
    )


def _counts(live: LiveCounts, queues: Sequence[QueueRow], ended: Sequence[EndedCount]) -> dict[str, Count]:
    return {
        TaskStatus.PENDING: Count(number=sum(queue.pending + queue.delayed for queue in queues)),
        TaskStatus.CLAIMED: Count(number=live.claimed),
        TaskStatus.RUNNING: Count(number=live.running),
        **{status: ended_count(status, ended) for status in TaskStatus if status in TASK_TERMINAL_STATES},
    }


def ended_count(status: TaskStatus, ended: Sequence[EndedCount]) -> Count:
    """How many ended so: counted where the table, or all that has a code, is small enough, else as the planner says."""
    known = {(each.source, each.status): each.number for each in ended}
    for source in ("table",) if status is TaskStatus.COMPLETED else ("table", "coded"):
        if sum(each.number for each in ended if each.source == source) <= MAX_ENDED_COUNTED:
            return Count(number=known.get((source, status), 0))
    if any(each.source == "planner" for each in ended):
        return Count(number=known.get(("planner", status), 0), is_estimate=True)
    return Count(number=known.get(("table", status), 0), is_capped=True)


def _errors(errors: Sequence[ErrorCount], status: TaskStatus, number: Callable[[ErrorCount], int]) -> Count:
    looked_at = Counter[str]()
    for each in errors:
        looked_at[each.code] += each.count
    is_capped = MAX_PER_ERROR_CODE in looked_at.values()
    return Count(number=sum(number(each) for each in errors if each.status == status), is_capped=is_capped)


def _given(ages: Iterable[timedelta | None]) -> list[timedelta]:
    return [age for age in ages if age is not None]


def _capped(number: int, most: int) -> Count:
    return Count(number=min(number, most), is_capped=number > most)


# What happened between two instants, for counters that never go back.


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterCutoff:
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCount:
    queue: str
    status: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationBucket:
    """Attempts whose duration fell between two bounds; index 0 is below the first bound."""

    index: int
    attempts: int
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCount:
    kind: str
    decision: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterQueries:
    cutoff: Query[CounterCutoff]
    finished: Query[FinishedCount]
    durations: Query[DurationBucket]
    events: Query[EventCount]


COUNTER_READS = load_queries(CounterQueries, "horsies_ops.reads", "metering")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterIncrements:
    """What happened until then."""

    until: datetime
    finished: tuple[FinishedCount, ...] = ()
    durations: tuple[DurationBucket, ...] = ()
    events: tuple[EventCount, ...] = ()


async def read_increments(
    database: Database, *, since: datetime | None, bucket_bounds_s: Sequence[float]
) -> CounterIncrements:
    """What happened since the `until` of the call before; without one, only from when on the next will count.

    Nothing is counted twice, and nothing is left out that a statement of ours committed.
    """

    async def read(transaction: Transaction) -> CounterIncrements:
        (now,) = await transaction.fetch(COUNTER_READS.cutoff)
        if since is None or since >= now.until:
            return CounterIncrements(until=since or now.until)
        span = (since, now.until)
        return CounterIncrements(
            until=now.until,
            finished=tuple(await transaction.fetch(COUNTER_READS.finished, *span)),
            durations=tuple(await transaction.fetch(COUNTER_READS.durations, *span, list(bucket_bounds_s))),
            events=tuple(await transaction.fetch(COUNTER_READS.events, *span)),
        )

    return await database.run(read)
