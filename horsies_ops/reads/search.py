"""Task search: which tasks match a filter, how many, and which values occur among them.

A filter may match one row in a million, so no statement scans the whole table. Rows are examined range by range in id
order or, if an index can list the few rows that may match at all, only those.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies_ops.reads.filters import TaskFilter, is_short_id
from horsies_ops.reads.server import SERVER_READS

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

RANGE_SIZE: Final = 5_000
"""Rows that one statement examines if most of them may not match."""

MAX_CANDIDATES: Final = 20_000
"""If an index lists more candidates than this, scanning the table by ranges is as fast."""

SEARCH_TIME_LIMIT: Final = timedelta(seconds=1)
"""How long a page or a count searches before it returns what it has found."""

MAX_COUNTED: Final = 10_000
MAX_ROWS_EXAMINED: Final = 200_000
"""Most rows examined for one count."""

FACET_SAMPLE_SIZE: Final = 10_000
"""How many of the newest tasks facets are counted over."""
MAX_FACET_VALUES: Final = 50

NEWEST_SEARCHED: Final = 10_000
"""A short id is searched among all unfinished tasks (or runs) and this many of the newest."""
MAX_SHORT_ID_MATCHES: Final = 20

EVERY_TASK: Final = TaskFilter()
MIN_ID, MAX_ID = UUID(int=0), UUID(int=(1 << 128) - 1)

_OWNED_STATUSES = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING})
_UNFINISHED_STATUSES = _OWNED_STATUSES | {TaskStatus.PENDING}
_UNSUCCESSFUL_STATUSES = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED})

# The timestamp in an id comes from the sender's clock, which may differ from the database's.
_MAX_CLOCK_SKEW = timedelta(hours=1)

# An id is chosen by its sender and may contain any timestamp; a `datetime` ends with the year 9999.
_MAX_DATETIME_MS = 253_402_300_799_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of rows; exact unless a flag says otherwise."""

    number: int
    is_estimate: bool = False
    """From the planner's statistics; usually a few per cent off, more after large changes."""
    is_capped: bool = False
    """Counting stopped at this number; there may be more."""

    def __str__(self) -> str:
        return f"{'~' if self.is_estimate else ''}{self.number:,}{'+' if self.is_capped else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A value and the number of tasks that have it."""

    value: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """Values that occur among the newest matching tasks, most frequent first."""

    statuses: tuple[Facet, ...]
    queues: tuple[Facet, ...]
    names: tuple[Facet, ...]
    error_codes: tuple[Facet, ...]


class Match(NamedTuple):
    """A task that matched, and its status at that time."""

    id: UUID
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """The matches among the rows that one statement examined."""

    matches: list[Match]
    rows_examined: int
    last_id: UUID | None = None
    """The last row examined; None at the end of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortIdMatch:
    """A task or run whose id ends in a short id."""

    id: UUID
    name: str
    status: str


class IdRange(NamedTuple):
    """Lowest and highest id of the next `size` rows."""

    size: int
    lowest: UUID | None
    highest: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetRow:
    kind: str
    value: str
    count: int


class TaskTableSize(NamedTuple):
    counted: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQueries:
    id_range: Query[IdRange]
    candidates: Query[UUID]
    matches: Query[Match]
    facets: Query[FacetRow]
    table_size: Query[TaskTableSize]
    tasks_by_short_id: Query[ShortIdMatch]
    runs_by_short_id: Query[ShortIdMatch]


SEARCH = load_queries(SearchQueries, "horsies_ops.reads", "search")


async def search_ranges(
    database: Database,
    task_filter: TaskFilter,
    *,
    oldest_first: bool = False,
    after: UUID | None = None,
    max_matches: int,
    size: int = RANGE_SIZE,
) -> AsyncGenerator[SearchRange]:
    """Yield the matching tasks in id order, range by range; at most `max_matches` per range."""
    candidates = await _candidates(database, task_filter)
    if candidates is not None:
        if after is not None:
            candidates = [task_id for task_id in candidates if (task_id > after if oldest_first else task_id < after)]
        matches = await _match(database, task_filter, oldest_first, max_matches, among=candidates)
        yield SearchRange(matches=matches, rows_examined=len(candidates))
        return
    # Without a filter every row matches, so there is no need to examine more rows than asked for.
    size = max_matches if task_filter.is_empty else max(size, max_matches)
    oldest = await _oldest_id(database, task_filter)
    position, end = (max(after or MIN_ID, oldest), MAX_ID) if oldest_first else (after or MAX_ID, oldest)
    while True:
        (ids,) = await database.fetch(SEARCH.id_range, oldest_first, position, size, end)
        if ids.lowest is None or ids.highest is None:
            return
        matches = await _match(database, task_filter, oldest_first, max_matches, (ids.lowest, ids.highest))
        if ids.size < size:  # the last range
            yield SearchRange(matches=matches, rows_examined=ids.size)
            return
        position = ids.highest if oldest_first else ids.lowest
        yield SearchRange(matches=matches, rows_examined=ids.size, last_id=position)


async def count_tasks(
    ops: Ops,
    filter: TaskFilter = EVERY_TASK,  # noqa: A002
    *,
    cap: int = MAX_COUNTED,
) -> Count:
    """Count matching tasks: exactly up to `cap`, or what was found within the time and row limits."""
    if filter.is_empty:
        (size,) = await ops.reader.fetch(SEARCH.table_size, cap + 1)
        if size.counted <= cap:
            return Count(number=size.counted)
        # The planner's statistics lag, but more than `cap` rows were seen.
        return Count(number=max(size.estimate, cap), is_estimate=True)
    found = examined = 0
    is_out_of_time = time_limit(SEARCH_TIME_LIMIT)
    async for searched in search_ranges(ops.reader, filter, max_matches=cap + 1, size=MAX_CANDIDATES):
        found, examined = found + len(searched.matches), examined + searched.rows_examined
        if found > cap:
            return Count(number=cap, is_capped=True)
        if searched.last_id is not None and (examined >= MAX_ROWS_EXAMINED or is_out_of_time()):
            return Count(number=found, is_capped=True)
    return Count(number=found)


async def facets(ops: Ops, filter: TaskFilter = EVERY_TASK) -> Facets:  # noqa: A002
    """Count the most frequent values among the newest 10,000 tasks, as far as they match."""
    ids: list[UUID] = []
    examined = 0
    async for searched in search_ranges(ops.reader, filter, max_matches=FACET_SAMPLE_SIZE):
        ids += [match.id for match in searched.matches]
        examined += searched.rows_examined
        if examined >= FACET_SAMPLE_SIZE:
            break
    rows = await ops.reader.fetch(SEARCH.facets, ids, MAX_FACET_VALUES) if ids else []

    def of_kind(kind: str) -> tuple[Facet, ...]:
        return tuple(Facet(value=row.value, count=row.count) for row in rows if row.kind == kind)

    return Facets(
        statuses=of_kind("statuses"),
        queues=of_kind("queues"),
        names=of_kind("names"),
        error_codes=of_kind("error_codes"),
    )


async def tasks_by_short_id(ops: Ops, short_id: str) -> tuple[ShortIdMatch, ...]:
    """Return the tasks whose id ends in `short_id`, newest first; old finished tasks are not searched."""
    return await _by_short_id(ops.reader, SEARCH.tasks_by_short_id, short_id)


async def runs_by_short_id(ops: Ops, short_id: str) -> tuple[ShortIdMatch, ...]:
    """Return the workflow runs whose id ends in `short_id`, newest first; old finished runs are not searched."""
    return await _by_short_id(ops.reader, SEARCH.runs_by_short_id, short_id)


async def _by_short_id(database: Database, query: Query[ShortIdMatch], short_id: str) -> tuple[ShortIdMatch, ...]:
    if not is_short_id(short_id):
        raise ValueError(f"invalid short id {short_id!r}: expected 8 hexadecimal digits")
    return tuple(await database.fetch(query, short_id.lower(), NEWEST_SEARCHED, MAX_SHORT_ID_MATCHES))


def time_limit(limit: timedelta | None) -> Callable[[], bool]:
    """Return a function that tells whether `limit` has passed since this call; None never passes."""
    started = time.monotonic()
    return lambda: limit is not None and time.monotonic() - started >= limit.total_seconds()


def sent_at_from_id(task_id: UUID) -> datetime:
    """Return when a task with this id was sent, by the sender's clock."""
    return datetime.fromtimestamp(min(task_id.int >> 80, _MAX_DATETIME_MS) / 1000, UTC)


async def _match(
    database: Database,
    task_filter: TaskFilter,
    oldest_first: bool,  # noqa: FBT001  # private; callers pass a variable of the same name
    limit: int,
    between: tuple[UUID, UUID] = (MIN_ID, MAX_ID),
    among: list[UUID] | None = None,
) -> list[Match]:
    return await database.fetch(SEARCH.matches, *between, among, task_filter.to_json(), oldest_first, limit)


async def _candidates(database: Database, task_filter: TaskFilter) -> list[UUID] | None:
    """Return every task that may match, if an index can list them and they are few; else None."""
    if task_filter.ids:
        ids = {UUID(id_text) for id_text in task_filter.ids if not is_short_id(id_text)}
        for short_id in filter(is_short_id, task_filter.ids):
            ids |= {match.id for match in await _by_short_id(database, SEARCH.tasks_by_short_id, short_id)}
        return list(ids)
    index, run_id = _index_for(task_filter)
    if index is None:
        return None
    # One more than the limit, to see whether there are more.
    found = await database.fetch(SEARCH.candidates, index, run_id, MAX_CANDIDATES + 1)
    return None if len(found) > MAX_CANDIDATES else found


def _index_for(task_filter: TaskFilter) -> tuple[str | None, UUID | None]:
    """Return which index lists every task that may match, as an argument of `candidates`, and the run to look up."""
    if task_filter.workflow_id is not None and not is_short_id(task_filter.workflow_id):
        return "workflow", UUID(task_filter.workflow_id)
    statuses = {TaskStatus(status) for status in task_filter.statuses}
    if task_filter.min_silence is not None or (statuses and statuses <= _OWNED_STATUSES):
        return "owned", None
    # Every task that finished without success has an error code.
    if task_filter.error_codes or (statuses and statuses <= _UNSUCCESSFUL_STATUSES):
        return "failed", None
    if task_filter.due_later or (statuses and statuses <= _UNFINISHED_STATUSES):
        return "unfinished", None
    return None, None


async def _oldest_id(database: Database, task_filter: TaskFilter) -> UUID:
    """Return a lower bound for the ids of tasks that `newer_than` allows."""
    if task_filter.newer_than is None:
        return MIN_ID
    # At most 100 years, because a datetime cannot go below the year 1.
    now = await database.fetch_single(SERVER_READS.now)
    since = now - min(task_filter.newer_than, timedelta(days=36_500)) - _MAX_CLOCK_SKEW
    milliseconds = max(0, int(since.timestamp() * 1000))
    # The first 48 bits of a UUIDv7 are its milliseconds.
    return UUID(int=milliseconds << 80)
