"""The stretch of a long list that is loaded: some pages of tasks, which more are read onto at either end.

Pages are read by id, newest first, so a list of a million rows costs what a page costs. A window at the top takes in
what is new as long as that does not push out the cursor's row; then it stays, and says how many newer ones wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import EVERY_TASK, TaskOrder, TaskPage, TaskSummary
from horsies_tui.data.source import DataSource

PAGE_SIZE: Final = 200
MAX_NEWER_COUNT: Final = 100
"""Newer rows are counted up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindow:
    """Tasks that match `filter`, without a gap, newest first."""

    filter: TaskFilter = EVERY_TASK
    rows: tuple[TaskSummary, ...] = ()
    newer_cursor: UUID | None = None
    """The newest task known to have been looked at: newer ones are looked for after it."""
    is_at_top: bool = True
    """Whether there was nothing newer when that was looked for last."""
    older_cursor: UUID | None = None
    """After which row older ones are looked for; None at the end."""
    searched_to: datetime | None = None
    """How far back was looked where matches are too rare to have filled the last page."""
    searched_newer_to: datetime | None = None
    """The same the other way round: how far up was looked without coming to the top."""
    newer_count: int = 0
    """How many newer ones are known to wait above; `MOST_WAITING` stands for more."""
    deleted_ids: frozenset[UUID] = frozenset()
    """Rows that were in it and exist no more."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def has_older(self) -> bool:
        return self.older_cursor is not None


async def load_newest(source: DataSource, task_filter: TaskFilter, *, limit: int = PAGE_SIZE) -> TaskWindow:
    page = await source.list_tasks(task_filter, limit=limit)
    previous = page.tasks[0].id if page.tasks else page.next
    rows = _without_ages(page.tasks)
    return TaskWindow(
        filter=task_filter, rows=rows, newer_cursor=previous, older_cursor=page.next, searched_to=page.searched_to
    )


async def load_oldest(source: DataSource, task_filter: TaskFilter) -> TaskWindow:
    """The last page; it has no rows where none was found in time, and `newer` goes on from there."""
    return await load_newer(
        source, TaskWindow(filter=task_filter, is_at_top=False, newer_count=MAX_NEWER_COUNT), max_rows=PAGE_SIZE
    )


async def load_older(source: DataSource, window: TaskWindow, *, max_rows: int) -> TaskWindow:
    """The window with a page more at its end, and with no more rows than `most`: the newest ones make room."""
    if window.older_cursor is None:
        return window
    page = await source.list_tasks(window.filter, after=window.older_cursor, limit=PAGE_SIZE)
    rows = window.rows + _without_ages(page.tasks)
    kept = rows[-max(max_rows, PAGE_SIZE) :]
    longer = replace(window, rows=kept, older_cursor=page.next, searched_to=page.searched_to)
    if len(kept) == len(rows):
        return longer
    return replace(longer, newer_cursor=kept[0].id, is_at_top=False, searched_newer_to=None)


async def load_newer(source: DataSource, window: TaskWindow, *, max_rows: int) -> TaskWindow:
    """The window with a page more at its beginning; the oldest ones make room."""
    if window.is_at_top:
        return window
    page = await source.list_tasks(
        window.filter, order=TaskOrder.OLDEST_FIRST, after=window.newer_cursor, limit=PAGE_SIZE
    )
    rows = _without_ages(page.tasks[::-1]) + window.rows
    kept = rows[: max(max_rows, PAGE_SIZE)]
    longer = replace(
        window,
        rows=kept,
        newer_cursor=page.next or (page.tasks[-1].id if page.tasks else window.newer_cursor),
        is_at_top=page.next is None,
        searched_newer_to=page.searched_to,
        newer_count=0 if page.next is None or page.searched_to is not None else window.newer_count,
    )
    return longer if len(kept) == len(rows) else replace(longer, older_cursor=kept[-1].id, searched_to=None)


async def reload(source: DataSource, window: TaskWindow, *, cursor: UUID | None) -> TaskWindow:
    """The same stretch as it is now."""
    limit = max(len(window.rows), PAGE_SIZE)
    if window.is_at_top:
        fresh = await load_newest(source, window.filter, limit=limit)
        if not _is_contiguous(fresh, window):
            # As a rule only what came in since lies between the two.
            fresh = await load_older(source, fresh, max_rows=2 * limit)
        fresh = await _keep_older_rows(source, fresh, window)
        if not _drops_cursor(cursor, window, fresh):
            return fresh
    return await _reload_from_top(source, window, limit=limit)


async def reload_in_place(source: DataSource, window: TaskWindow) -> TaskWindow:
    """The very same rows, each as it is now: nothing moves under marks."""
    found = {row.id: row for row in _without_ages(await source.tasks_by_id(window.ids))}
    gone = frozenset(window.ids) - found.keys()
    waiting = len((await _fetch_newer_page(source, window)).tasks)
    return replace(
        window, rows=tuple(found[row] for row in window.ids if row in found), newer_count=waiting, deleted_ids=gone
    )


async def _reload_from_top(source: DataSource, window: TaskWindow, *, limit: int) -> TaskWindow:
    """What there is from the window's first row downwards; where it has none yet, the search for one goes on."""
    if not window.rows:
        return await load_newer(source, window, max_rows=limit)
    # An id is a number, and `after` leaves out the row that it names.
    top = window.rows[0].id
    page = await source.list_tasks(window.filter, after=UUID(int=top.int + 1), limit=limit)
    below = _with_newer_page(await _fetch_newer_page(source, window), window)
    fresh = replace(below, rows=_without_ages(page.tasks), older_cursor=page.next, searched_to=page.searched_to)
    return await _keep_older_rows(source, fresh, window)


async def _keep_older_rows(source: DataSource, fresh: TaskWindow, window: TaskWindow) -> TaskWindow:
    """What was found further back by scrolling on, where a search anew did not come as far but met it."""
    reached = fresh.older_cursor
    if fresh.searched_to is None or reached is None or not _is_contiguous(fresh, window):
        return fresh
    if window.older_cursor is not None and window.older_cursor >= reached:
        return fresh
    known = [str(row.id) for row in window.rows if row.id < reached]
    page = await source.list_tasks(replace(window.filter, ids=known), limit=len(known)) if known else None
    rows = fresh.rows + (_without_ages(page.tasks) if page else ())
    previous = max(each for each in (fresh.newer_cursor, window.newer_cursor) if each is not None)
    return replace(
        fresh, rows=rows, newer_cursor=previous, older_cursor=window.older_cursor, searched_to=window.searched_to
    )


def _is_contiguous(fresh: TaskWindow, window: TaskWindow) -> bool:
    """Whether nothing between the two was left out: a search ends where its time does, perhaps above the old one."""
    if fresh.searched_to is None or fresh.older_cursor is None:
        return True
    return window.newer_cursor is not None and fresh.older_cursor <= window.newer_cursor


async def _fetch_newer_page(source: DataSource, window: TaskWindow) -> TaskPage:
    return await source.list_tasks(
        window.filter, order=TaskOrder.OLDEST_FIRST, after=window.newer_cursor, limit=MAX_NEWER_COUNT
    )


def _with_newer_page(above: TaskPage, window: TaskWindow) -> TaskWindow:
    """The window, knowing what there is above it; a search that ended too early goes on from there next time."""
    if above.tasks:
        return replace(window, is_at_top=False, newer_count=len(above.tasks), searched_newer_to=None)
    return replace(
        window,
        newer_cursor=above.next or window.newer_cursor,
        is_at_top=above.next is None,
        newer_count=0,
        searched_newer_to=above.searched_to,
    )


def _drops_cursor(cursor: UUID | None, window: TaskWindow, fresh: TaskWindow) -> bool:
    """Whether new rows would push the cursor's row out; one that no longer matches is gone either way."""
    if cursor is None or cursor not in window.ids or fresh.older_cursor is None:
        return False
    return cursor < fresh.older_cursor


def _without_ages(rows: tuple[TaskSummary, ...]) -> tuple[TaskSummary, ...]:
    """Rows that are equal as long as nothing happened to them; ages are reckoned when they are drawn."""
    return tuple(replace(row, age=timedelta(0), silence=None) for row in rows)
