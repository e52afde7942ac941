"""The whole system at one glance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from horsies.model.settings import RecoveryConfig
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.store.queries import Query, load
from horsies_ops.reads.queues import MOST_ENDED, QUEUE_READS, QueueRow
from horsies_ops.reads.search import Count
from horsies_ops.reads.stale import stale_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from horsies.store.database import Database, Transaction
    from horsies_ops.reads.stale import StaleNow


# How much is done, how long it takes, and what goes wrong, over a stretch of time.

MOST_OF_A_BUCKET: Final = 2_000
MOST_TIMED: Final = 5_000
MOST_OF_A_CODE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
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
class Times:
    """How long tasks waited and ran in their last attempt: half of them at most p50, nearly all at most p95."""

    wait_p50: timedelta | None
    wait_p95: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Buckets from the oldest on, the last one still open, and the times of what ended last in the window."""

    buckets: tuple[Bucket, ...]
    times: Times


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
    buckets: Query[Bucket]
    queues: Query[QueueBucket]
    times: Query[Times]
    errors: Query[ErrorCount]


THROUGHPUT = load(ThroughputQueries, "horsies_ops.reads", "throughput")


async def throughput(database: Database, window: timedelta, buckets: int = 30) -> Throughput:
    """What was done in the last `window`; a bucket with very many tasks is reckoned from a part of it."""
    rows = await database.fetch(THROUGHPUT.buckets, *_parts(window, buckets))
    (times,) = await database.fetch(THROUGHPUT.times, window, MOST_TIMED)
    return Throughput(buckets=tuple(rows), times=times)


async def queue_throughput(database: Database, window: timedelta, buckets: int = 30) -> tuple[QueueBucket, ...]:
    """The same queue by queue, on the same boundaries; buckets in which nothing ended are left out."""
    return tuple(await database.fetch(THROUGHPUT.queues, *_parts(window, buckets)))


def _parts(window: timedelta, buckets: int) -> tuple[timedelta, int, int]:
    if buckets < 1:
        raise ValueError("buckets must be at least 1")
    return window / buckets, buckets, MOST_OF_A_BUCKET


async def error_summary(database: Database, window: timedelta) -> tuple[ErrorCount, ...]:
    """What went wrong in the last `window`, the most frequent first; of each code only the newest are counted."""
    return tuple(await database.fetch(THROUGHPUT.errors, window, MOST_OF_A_CODE))


MOST_COUNTED: Final = 20_000
DAY: Final = timedelta(days=1)
MOST_RUNS: Final = 10_000


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
    """That a sweep would settle, or that an amnesty holds back; the same for those running."""
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
class Live:
    at: datetime
    claimed: int
    running: int
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    source: str
    status: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersIn:
    state: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsIn:
    status: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQueries:
    live: Query[Live]
    ended: Query[Ended]
    workers: Query[WorkersIn]
    workflows: Query[RunsIn]


OVERVIEW = load(OverviewQueries, "horsies_ops.reads", "overview")


async def overview(database: Database, *, local: RecoveryConfig | None = None) -> Overview:
    """The whole system, read in one transaction, so that ages share one instant.

    What is stale is for the decision to say, which goes by `local` where no worker lives.
    """
    stale = await stale_now(database, local=local or RecoveryConfig())
    return await database.run(lambda transaction: _look(transaction, stale))


async def _look(transaction: Transaction, stale: StaleNow) -> Overview:
    (live,) = await transaction.fetch(OVERVIEW.live)
    errors = await transaction.fetch(THROUGHPUT.errors, DAY, MOST_OF_A_CODE)
    queues = tuple(await transaction.fetch(QUEUE_READS.list, MOST_ENDED))
    ended = await transaction.fetch(OVERVIEW.ended, MOST_COUNTED + 1)
    runs = await transaction.fetch(OVERVIEW.workflows, MOST_RUNS + 1)
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
        workflows={run.status: _capped(run.number, MOST_RUNS) for run in runs},
        slots=live.slots,
        running=live.running,
    )


def _counts(live: Live, queues: Sequence[QueueRow], ended: Sequence[Ended]) -> dict[str, Count]:
    return {
        TaskStatus.PENDING: Count(number=sum(queue.pending + queue.delayed for queue in queues)),
        TaskStatus.CLAIMED: Count(number=live.claimed),
        TaskStatus.RUNNING: Count(number=live.running),
        **{status: ended_count(status, ended) for status in TaskStatus if status in TASK_TERMINAL_STATES},
    }


def ended_count(status: TaskStatus, ended: Sequence[Ended]) -> Count:
    """How many ended so: counted where the table, or all that has a code, is small enough, else as the planner says."""
    known = {(each.source, each.status): each.number for each in ended}
    for source in ("table",) if status is TaskStatus.COMPLETED else ("table", "coded"):
        if sum(each.number for each in ended if each.source == source) <= MOST_COUNTED:
            return Count(number=known.get((source, status), 0))
    if any(each.source == "planner" for each in ended):
        return Count(number=known.get(("planner", status), 0), is_estimate=True)
    return Count(number=known.get(("table", status), 0), is_capped=True)


def _errors(errors: Sequence[ErrorCount], status: TaskStatus, number: Callable[[ErrorCount], int]) -> Count:
    looked_at = Counter[str]()
    for each in errors:
        looked_at[each.code] += each.count
    is_capped = MOST_OF_A_CODE in looked_at.values()
    return Count(number=sum(number(each) for each in errors if each.status == status), is_capped=is_capped)


def _given(ages: Iterable[timedelta | None]) -> list[timedelta]:
    return [age for age in ages if age is not None]


def _capped(number: int, most: int) -> Count:
    return Count(number=min(number, most), is_capped=number > most)


# What happened between two instants, for counters that never go back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    queue: str
    status: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Executions that fell between two bounds; part 0 is below the first."""

    part: int
    executions: int
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    kind: str
    decision: str
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringQueries:
    bounds: Query[Bounds]
    finished: Query[Finished]
    durations: Query[Durations]
    events: Query[Events]


METERING = load(MeteringQueries, "horsies_ops.reads", "metering")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What happened until then."""

    until: datetime
    finished: tuple[Finished, ...] = ()
    durations: tuple[Durations, ...] = ()
    events: tuple[Events, ...] = ()


async def metered(database: Database, *, since: datetime | None, bounds_s: Sequence[float]) -> Metered:
    """What happened since the `until` of the call before; without one, only from when on the next will count.

    Nothing is counted twice, and nothing is left out that a statement of ours committed.
    """

    async def read(transaction: Transaction) -> Metered:
        (now,) = await transaction.fetch(METERING.bounds)
        if since is None or since >= now.until:
            return Metered(until=since or now.until)
        span = (since, now.until)
        return Metered(
            until=now.until,
            finished=tuple(await transaction.fetch(METERING.finished, *span)),
            durations=tuple(await transaction.fetch(METERING.durations, *span, list(bounds_s))),
            events=tuple(await transaction.fetch(METERING.events, *span)),
        )

    return await database.run(read)
