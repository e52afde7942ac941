"""The stretch of a long list that is loaded: some pages of tasks, which more are read onto at either end.

Pages are read by id, newest first, so a list of a million rows costs what a page costs. A window at the top takes in
what is new as long as that does not push out the cursor's row; then it stays, and says how many newer ones wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies_ops.reads.tasks import EVERY_TASK, Order

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.filter import TaskFilter
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_tui.source import Source

PAGE: Final = 200
MOST_WAITING: Final = 100
"""Newer rows are counted up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindow:
    """Tasks that match `filter`, without a gap, newest first."""

    filter: TaskFilter = EVERY_TASK
    rows: tuple[TaskSummary, ...] = ()
    previous: UUID | None = None
    """After which row newer ones are looked for; None at the top."""
    next: UUID | None = None
    """After which row older ones are looked for; None at the end."""
    searched_to: datetime | None = None
    """How far back was looked where matches are too rare to have filled the last page."""
    newer: int = 0
    """How many newer ones are known to wait above; `MOST_WAITING` stands for more."""
    gone: frozenset[UUID] = frozenset()
    """Rows that were in it and exist no more."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def is_at_top(self) -> bool:
        return self.previous is None

    @property
    def has_older(self) -> bool:
        return self.next is not None


async def newest(source: Source, wanted: TaskFilter, *, limit: int = PAGE) -> TaskWindow:
    page = await source.list_tasks(wanted, limit=limit)
    return TaskWindow(filter=wanted, rows=_steady(page.tasks), next=page.next, searched_to=page.searched_to)


async def oldest(source: Source, wanted: TaskFilter) -> TaskWindow:
    """The last page."""
    page = await source.list_tasks(wanted, order=Order.OLDEST_FIRST, limit=PAGE)
    newer = 0 if page.next is None else MOST_WAITING
    return TaskWindow(filter=wanted, rows=_steady(page.tasks[::-1]), previous=page.next, newer=newer)


async def older(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its end, and with no more rows than `most`: the newest ones make room."""
    if window.next is None:
        return window
    page = await source.list_tasks(window.filter, after=window.next, limit=PAGE)
    rows = window.rows + _steady(page.tasks)
    kept = rows[-max(most, PAGE) :]
    previous = window.previous if len(kept) == len(rows) else kept[0].id
    return replace(window, rows=kept, previous=previous, next=page.next, searched_to=page.searched_to)


async def newer(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its beginning; the oldest ones make room."""
    if window.previous is None:
        return window
    page = await source.list_tasks(window.filter, order=Order.OLDEST_FIRST, after=window.previous, limit=PAGE)
    rows = _steady(page.tasks[::-1]) + window.rows
    kept = rows[: max(most, PAGE)]
    fuller = replace(window, rows=kept, previous=page.next, newer=0 if page.next is None else window.newer)
    return fuller if len(kept) == len(rows) else replace(fuller, next=kept[-1].id, searched_to=None)


async def again(source: Source, window: TaskWindow, *, cursor: UUID | None) -> TaskWindow:
    """The same stretch as it is now."""
    limit = max(len(window.rows), PAGE)
    if window.is_at_top:
        fresh = await _as_far(source, await newest(source, window.filter, limit=limit), window)
        if not _would_lose(cursor, window, fresh):
            return fresh
    return await _from(source, window, limit=limit)


async def held(source: Source, window: TaskWindow) -> TaskWindow:
    """The very same rows, each as it is now: nothing moves under marks."""
    found = {row.id: row for row in _steady(await source.tasks_by_id(window.ids))}
    gone = frozenset(window.ids) - found.keys()
    waiting = await _waiting(source, window)
    return replace(window, rows=tuple(found[row] for row in window.ids if row in found), newer=waiting, gone=gone)


async def _from(source: Source, window: TaskWindow, *, limit: int) -> TaskWindow:
    """What there is from the window's first row downwards."""
    if not window.rows:
        return window
    # An id is a number, and `after` leaves out the row that it names.
    top = window.rows[0].id
    page = await source.list_tasks(window.filter, after=UUID(int=top.int + 1), limit=limit)
    waiting = await _waiting(source, window)
    fresh = replace(
        window,
        rows=_steady(page.tasks),
        previous=top if waiting else None,
        next=page.next,
        searched_to=page.searched_to,
        newer=waiting,
    )
    return await _as_far(source, fresh, window)


async def _as_far(source: Source, fresh: TaskWindow, window: TaskWindow) -> TaskWindow:
    """What was found further back by scrolling on, where a search anew did not come as far."""
    reached = fresh.next
    if fresh.searched_to is None or reached is None or (window.next is not None and window.next >= reached):
        return fresh
    known = [str(row.id) for row in window.rows if row.id < reached]
    page = await source.list_tasks(replace(window.filter, ids=known), limit=len(known)) if known else None
    rows = fresh.rows + (_steady(page.tasks) if page else ())
    return replace(fresh, rows=rows, next=window.next, searched_to=window.searched_to)


async def _waiting(source: Source, window: TaskWindow) -> int:
    if not window.rows:
        return 0
    above = await source.list_tasks(
        window.filter, order=Order.OLDEST_FIRST, after=window.rows[0].id, limit=MOST_WAITING
    )
    return len(above.tasks)


def _would_lose(cursor: UUID | None, window: TaskWindow, fresh: TaskWindow) -> bool:
    """Whether new rows would push the cursor's row out; one that no longer matches is gone either way."""
    if cursor is None or cursor not in window.ids or not fresh.rows:
        return False
    return cursor < fresh.rows[-1].id


def _steady(rows: tuple[TaskSummary, ...]) -> tuple[TaskSummary, ...]:
    """Rows that are equal as long as nothing happened to them; ages are reckoned when they are drawn."""
    return tuple(replace(row, age=timedelta(0), silence=None) for row in rows)
