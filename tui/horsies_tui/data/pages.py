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

    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.tasks import TaskPage, TaskSummary
    from horsies_tui.data.source import Source

PAGE: Final = 200
MOST_WAITING: Final = 100
"""Newer rows are counted up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindow:
    """Tasks that match `filter`, without a gap, newest first."""

    filter: TaskFilter = EVERY_TASK
    rows: tuple[TaskSummary, ...] = ()
    previous: UUID | None = None
    """The newest task known to have been looked at: newer ones are looked for after it."""
    is_at_top: bool = True
    """Whether there was nothing newer when that was looked for last."""
    next: UUID | None = None
    """After which row older ones are looked for; None at the end."""
    searched_to: datetime | None = None
    """How far back was looked where matches are too rare to have filled the last page."""
    searched_up_to: datetime | None = None
    """The same the other way round: how far up was looked without coming to the top."""
    newer: int = 0
    """How many newer ones are known to wait above; `MOST_WAITING` stands for more."""
    gone: frozenset[UUID] = frozenset()
    """Rows that were in it and exist no more."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def has_older(self) -> bool:
        return self.next is not None


async def newest(source: Source, wanted: TaskFilter, *, limit: int = PAGE) -> TaskWindow:
    page = await source.list_tasks(wanted, limit=limit)
    previous = page.tasks[0].id if page.tasks else page.next
    rows = _steady(page.tasks)
    return TaskWindow(filter=wanted, rows=rows, previous=previous, next=page.next, searched_to=page.searched_to)


async def oldest(source: Source, wanted: TaskFilter) -> TaskWindow:
    """The last page; it has no rows where none was found in time, and `newer` goes on from there."""
    return await newer(source, TaskWindow(filter=wanted, is_at_top=False, newer=MOST_WAITING), most=PAGE)


async def older(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its end, and with no more rows than `most`: the newest ones make room."""
    if window.next is None:
        return window
    page = await source.list_tasks(window.filter, after=window.next, limit=PAGE)
    rows = window.rows + _steady(page.tasks)
    kept = rows[-max(most, PAGE) :]
    longer = replace(window, rows=kept, next=page.next, searched_to=page.searched_to)
    if len(kept) == len(rows):
        return longer
    return replace(longer, previous=kept[0].id, is_at_top=False, searched_up_to=None)


async def newer(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its beginning; the oldest ones make room."""
    if window.is_at_top:
        return window
    page = await source.list_tasks(window.filter, order=Order.OLDEST_FIRST, after=window.previous, limit=PAGE)
    rows = _steady(page.tasks[::-1]) + window.rows
    kept = rows[: max(most, PAGE)]
    longer = replace(
        window,
        rows=kept,
        previous=page.next or (page.tasks[-1].id if page.tasks else window.previous),
        is_at_top=page.next is None,
        searched_up_to=page.searched_to,
        newer=0 if page.next is None or page.searched_to is not None else window.newer,
    )
    return longer if len(kept) == len(rows) else replace(longer, next=kept[-1].id, searched_to=None)


async def again(source: Source, window: TaskWindow, *, cursor: UUID | None) -> TaskWindow:
    """The same stretch as it is now."""
    limit = max(len(window.rows), PAGE)
    if window.is_at_top:
        fresh = await newest(source, window.filter, limit=limit)
        if not _meets(fresh, window):
            # As a rule only what came in since lies between the two.
            fresh = await older(source, fresh, most=2 * limit)
        fresh = await _as_far(source, fresh, window)
        if not _would_lose(cursor, window, fresh):
            return fresh
    return await _from(source, window, limit=limit)


async def held(source: Source, window: TaskWindow) -> TaskWindow:
    """The very same rows, each as it is now: nothing moves under marks."""
    found = {row.id: row for row in _steady(await source.tasks_by_id(window.ids))}
    gone = frozenset(window.ids) - found.keys()
    waiting = len((await _above(source, window)).tasks)
    return replace(window, rows=tuple(found[row] for row in window.ids if row in found), newer=waiting, gone=gone)


async def _from(source: Source, window: TaskWindow, *, limit: int) -> TaskWindow:
    """What there is from the window's first row downwards; where it has none yet, the search for one goes on."""
    if not window.rows:
        return await newer(source, window, most=limit)
    # An id is a number, and `after` leaves out the row that it names.
    top = window.rows[0].id
    page = await source.list_tasks(window.filter, after=UUID(int=top.int + 1), limit=limit)
    below = _below(await _above(source, window), window)
    fresh = replace(below, rows=_steady(page.tasks), next=page.next, searched_to=page.searched_to)
    return await _as_far(source, fresh, window)


async def _as_far(source: Source, fresh: TaskWindow, window: TaskWindow) -> TaskWindow:
    """What was found further back by scrolling on, where a search anew did not come as far but met it."""
    reached = fresh.next
    if fresh.searched_to is None or reached is None or not _meets(fresh, window):
        return fresh
    if window.next is not None and window.next >= reached:
        return fresh
    known = [str(row.id) for row in window.rows if row.id < reached]
    page = await source.list_tasks(replace(window.filter, ids=known), limit=len(known)) if known else None
    rows = fresh.rows + (_steady(page.tasks) if page else ())
    previous = max(each for each in (fresh.previous, window.previous) if each is not None)
    return replace(fresh, rows=rows, previous=previous, next=window.next, searched_to=window.searched_to)


def _meets(fresh: TaskWindow, window: TaskWindow) -> bool:
    """Whether nothing between the two was left out: a search ends where its time does, perhaps above the old one."""
    if fresh.searched_to is None or fresh.next is None:
        return True
    return window.previous is not None and fresh.next <= window.previous


async def _above(source: Source, window: TaskWindow) -> TaskPage:
    return await source.list_tasks(window.filter, order=Order.OLDEST_FIRST, after=window.previous, limit=MOST_WAITING)


def _below(above: TaskPage, window: TaskWindow) -> TaskWindow:
    """The window, knowing what there is above it; a search that ended too early goes on from there next time."""
    if above.tasks:
        return replace(window, is_at_top=False, newer=len(above.tasks), searched_up_to=None)
    return replace(
        window,
        previous=above.next or window.previous,
        is_at_top=above.next is None,
        newer=0,
        searched_up_to=above.searched_to,
    )


def _would_lose(cursor: UUID | None, window: TaskWindow, fresh: TaskWindow) -> bool:
    """Whether new rows would push the cursor's row out; one that no longer matches is gone either way."""
    if cursor is None or cursor not in window.ids or fresh.next is None:
        return False
    return cursor < fresh.next


def _steady(rows: tuple[TaskSummary, ...]) -> tuple[TaskSummary, ...]:
    """Rows that are equal as long as nothing happened to them; ages are reckoned when they are drawn."""
    return tuple(replace(row, age=timedelta(0), silence=None) for row in rows)
