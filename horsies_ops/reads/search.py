"""Which tasks match a filter, how many there are, and what occurs among them.

A filter may match one row in a million, so no statement goes through the whole table: rows are looked at stretch by
stretch in the order of their ids, or, where an index knows the few that can match at all, those alone.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies_ops.reads.filters import TaskFilter, is_short_id, tasks_by_short_id
from horsies_ops.reads.server import database_time

# Numbers as operators read them, and how far each may be trusted.


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many; exact unless it says otherwise."""

    number: int
    is_estimate: bool = False
    """Taken from the planner's statistics, right to a few per cent at best."""
    is_capped: bool = False
    """Counting stopped here; there may be more."""

    def __str__(self) -> str:
        return f"{'~' if self.is_estimate else ''}{self.number:,}{'+' if self.is_capped else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A value that occurs among some tasks, and how often."""

    value: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """What occurs among the newest matching tasks, the most frequent value first."""

    statuses: tuple[Facet, ...]
    queues: tuple[Facet, ...]
    names: tuple[Facet, ...]
    error_codes: tuple[Facet, ...]


RANGE_SIZE: Final = 5_000
"""How many rows one statement goes through where a filter may pass most of them over."""

MAX_CANDIDATES: Final = 20_000
"""From how many on they are as well met with by going through the table."""

SEARCH_TIME_LIMIT: Final = timedelta(seconds=1)
"""How long a page or a count looks for tasks that match before it answers with what it has."""

MAX_COUNTED: Final = 10_000
MAX_ROWS_EXAMINED: Final = 200_000
"""How many rows are looked at to count those that match."""

FACET_SAMPLE_SIZE: Final = 10_000
"""How many of the newest tasks tell what occurs."""

MAX_FACET_VALUES: Final = 50

MIN_ID, MAX_ID = UUID(int=0), UUID(int=(1 << 128) - 1)

_OWNED_STATUSES = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING})
_LIVE_STATUSES = _OWNED_STATUSES | {TaskStatus.PENDING}
_UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED})

# The clock in an id is the sender's, which may differ from the database's.
_MAX_CLOCK_SKEW = timedelta(hours=1)

# An id may be anything its sender made up; a `datetime` ends with the year 9999.
_LATEST_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """A stretch of ids."""

    size: int
    lowest: UUID | None
    highest: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateId:
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A task that matched, and the status in which it did."""

    id: UUID
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetRow:
    kind: str
    value: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTableSize:
    counted: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQueries:
    id_range: Query[IdRange]
    candidates: Query[CandidateId]
    matches: Query[Match]
    facets: Query[FacetRow]
    table_size: Query[TaskTableSize]


SEARCH = load_queries(SearchQueries, "horsies_ops.reads", "matching")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """What matches among the rows that were looked at."""

    matches: list[Match]
    rows_examined: int
    last_id: UUID | None = None
    """The last row that was looked at; None at the end of the table."""


async def search_ranges(
    database: Database,
    wanted: TaskFilter,
    *,
    oldest_first: bool = False,
    after: UUID | None = None,
    max_matches: int,
    size: int = RANGE_SIZE,
) -> AsyncGenerator[SearchRange]:
    """Yield matching tasks in order, a stretch of the table at a time, until it ends or `enough` were found in one."""
    few = await _candidates(database, wanted)
    if few is not None:
        ahead = [each for each in few if after is None or ((each > after) if oldest_first else (each < after))]
        yield SearchRange(
            matches=await _match(database, wanted, oldest_first, max_matches, among=ahead), rows_examined=len(ahead)
        )
        return
    size = max_matches if wanted.is_empty else max(size, max_matches)
    oldest = await _oldest_id(database, wanted)
    reached, end = (max(after or MIN_ID, oldest), MAX_ID) if oldest_first else (after or MAX_ID, oldest)
    while True:
        (window,) = await database.fetch(SEARCH.id_range, oldest_first, reached, size, end)
        if window.lowest is None or window.highest is None:
            return
        matches = await _match(database, wanted, oldest_first, max_matches, (window.lowest, window.highest))
        if window.size < size:
            yield SearchRange(matches=matches, rows_examined=window.size)
            return
        reached = window.highest if oldest_first else window.lowest
        yield SearchRange(matches=matches, rows_examined=window.size, last_id=reached)


def time_limit(allowed: timedelta | None) -> Callable[[], bool]:
    """Tells whether `allowed` has passed since now; None never passes."""
    began = time.monotonic()
    return lambda: allowed is not None and time.monotonic() - began >= allowed.total_seconds()


async def count_tasks(database: Database, wanted: TaskFilter, *, cap: int = MAX_COUNTED) -> Count:
    """How many tasks match: exactly up to `cap`, or as many as were found before it took too long."""
    if wanted.is_empty:
        return await _count_all(database, cap)
    found = looked_at = 0
    is_over = time_limit(SEARCH_TIME_LIMIT)
    async for stretch in search_ranges(database, wanted, max_matches=cap + 1, size=MAX_CANDIDATES):
        found, looked_at = found + len(stretch.matches), looked_at + stretch.rows_examined
        if found > cap:
            return Count(number=cap, is_capped=True)
        if stretch.last_id is not None and (looked_at >= MAX_ROWS_EXAMINED or is_over()):
            return Count(number=found, is_capped=True)
    return Count(number=found)


async def facets(database: Database, wanted: TaskFilter) -> Facets:
    """What occurs among the newest tasks, where they match: the most frequent values of each kind."""
    ids: list[UUID] = []
    looked_at = 0
    async for stretch in search_ranges(database, wanted, max_matches=FACET_SAMPLE_SIZE):
        ids += [each.id for each in stretch.matches]
        looked_at += stretch.rows_examined
        if looked_at >= FACET_SAMPLE_SIZE:
            break
    values = await database.fetch(SEARCH.facets, ids, MAX_FACET_VALUES) if ids else []

    def of(kind: str) -> tuple[Facet, ...]:
        return tuple(Facet(value=each.value, count=each.count) for each in values if each.kind == kind)

    return Facets(statuses=of("statuses"), queues=of("queues"), names=of("names"), error_codes=of("error_codes"))


async def _match(
    database: Database,
    wanted: TaskFilter,
    oldest_first: bool,  # noqa: FBT001  # private, and always passed on by the name it has
    limit: int,
    between: tuple[UUID, UUID] = (MIN_ID, MAX_ID),
    among: list[UUID] | None = None,
) -> list[Match]:
    return await database.fetch(SEARCH.matches, *between, among, wanted.to_json(), oldest_first, limit)


async def _candidates(database: Database, wanted: TaskFilter) -> list[UUID] | None:
    """All tasks that can match, where an index can tell and they are few; else None."""
    if wanted.ids:
        return await _ids_in_filter(database, wanted)
    kind, run = _index_for(wanted)
    if kind is None:
        return None
    found = await database.fetch(SEARCH.candidates, kind, run, MAX_CANDIDATES + 1)
    return None if len(found) > MAX_CANDIDATES else [each.id for each in found]


async def _ids_in_filter(database: Database, wanted: TaskFilter) -> list[UUID]:
    ids = {UUID(each) for each in wanted.ids if not is_short_id(each)}
    for each in filter(is_short_id, wanted.ids):
        ids |= {found.id for found in await tasks_by_short_id(database, each)}
    return list(ids)


def _index_for(wanted: TaskFilter) -> tuple[str | None, UUID | None]:
    """The kind of index that knows all tasks that can match, and the run it is asked for."""
    if wanted.workflow_id is not None and not is_short_id(wanted.workflow_id):
        return "workflow", UUID(wanted.workflow_id)
    statuses = {TaskStatus(each) for each in wanted.statuses}
    if wanted.min_silence is not None or (statuses and statuses <= _OWNED_STATUSES):
        return "held", None
    if wanted.error_codes or (statuses and statuses <= _UNSUCCESSFUL):
        # Whatever ended without success has a code.
        return "failed", None
    if wanted.due_later or (statuses and statuses <= _LIVE_STATUSES):
        return "waiting", None
    return None, None


async def _oldest_id(database: Database, wanted: TaskFilter) -> UUID:
    """No task that was sent recently enough has an id before this one."""
    if wanted.newer_than is None:
        return MIN_ID
    since = await database_time(database) - min(wanted.newer_than, timedelta(days=36_500)) - _MAX_CLOCK_SKEW
    return _id_at(since)


def sent_at_from_id(minted: UUID) -> datetime:
    """When a task of this id was sent, by the sender's clock."""
    return datetime.fromtimestamp(min(minted.int >> 80, _LATEST_MS) / 1000, UTC)


def _id_at(instant: datetime) -> UUID:
    milliseconds = max(0, int(instant.timestamp() * 1000))
    return UUID(int=milliseconds << 80)


async def _count_all(database: Database, cap: int) -> Count:
    (size,) = await database.fetch(SEARCH.table_size, cap + 1)
    if size.counted <= cap:
        return Count(number=size.counted)
    return Count(number=max(size.estimate, cap), is_estimate=True)
