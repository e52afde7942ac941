"""The loaded part of a long task list: a window of pages that can be extended at both ends.

Pages are read by id (keyset), newest first, so a page costs the same in a list of a million rows. A window at the top
takes in new rows until they would push out the cursor's row; from then on it stays and counts the newer rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import EVERY_TASK, TaskOrder, TaskPage, TaskSummary
from horsies_ops.source import DataSource

PAGE_SIZE: Final = 200
MAX_NEWER_COUNT: Final = 100
"""Newer rows are counted up to this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindow:
    """All tasks that match `filter` in an id range, newest first."""

    filter: TaskFilter = EVERY_TASK
    rows: tuple[TaskSummary, ...] = ()
    newer_cursor: UUID | None = None
    """Id after which to search for newer rows."""
    is_at_top: bool = True
    """Whether the last search found nothing newer."""
    older_cursor: UUID | None = None
    """Id after which to search for older rows; None at the end of the list."""
    searched_to: datetime | None = None
    """How far back the last search got, if it ran out of time before filling a page."""
    searched_newer_to: datetime | None = None
    """The same for newer rows: how far up the last search got without reaching the top."""
    newer_count: int = 0
    """Number of newer rows that are not loaded, at most MAX_NEWER_COUNT."""
    deleted_ids: frozenset[UUID] = frozenset()
    """Tasks of this window that no longer exist."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(row.id for row in self.rows)

    @property
    def has_older(self) -> bool:
        return self.older_cursor is not None


async def load_newest(source: DataSource, task_filter: TaskFilter, *, limit: int = PAGE_SIZE) -> TaskWindow:
    """The first page: the newest tasks that match."""
    page = await source.list_tasks(task_filter, limit=limit)
    return TaskWindow(
        filter=task_filter,
        rows=_without_ages(page.tasks),
        newer_cursor=page.tasks[0].id if page.tasks else page.next,
        older_cursor=page.next,
        searched_to=page.searched_to,
    )


async def load_oldest(source: DataSource, task_filter: TaskFilter) -> TaskWindow:
    """The last page. It is empty if the search ran out of time; `load_newer` then continues it."""
    return await load_newer(
        source, TaskWindow(filter=task_filter, is_at_top=False, newer_count=MAX_NEWER_COUNT), max_rows=PAGE_SIZE
    )


async def load_older(source: DataSource, window: TaskWindow, *, max_rows: int) -> TaskWindow:
    """Append a page of older rows; beyond `max_rows` the newest rows are dropped."""
    if window.older_cursor is None:
        return window
    page = await source.list_tasks(window.filter, after=window.older_cursor, limit=PAGE_SIZE)
    rows = window.rows + _without_ages(page.tasks)
    kept = rows[-max(max_rows, PAGE_SIZE) :]
    extended = replace(window, rows=kept, older_cursor=page.next, searched_to=page.searched_to)
    if len(kept) == len(rows):
        return extended
    # The dropped rows are newer ones that can be loaded again.
    return replace(extended, newer_cursor=kept[0].id, is_at_top=False, searched_newer_to=None)


async def load_newer(source: DataSource, window: TaskWindow, *, max_rows: int) -> TaskWindow:
    """Prepend a page of newer rows; beyond `max_rows` the oldest rows are dropped."""
    if window.is_at_top:
        return window
    page = await source.list_tasks(
        window.filter, order=TaskOrder.OLDEST_FIRST, after=window.newer_cursor, limit=PAGE_SIZE
    )
    # Read oldest first, to join the window without a gap; reversed to newest first.
    rows = _without_ages(page.tasks[::-1]) + window.rows
    kept = rows[: max(max_rows, PAGE_SIZE)]
    extended = replace(
        window,
        rows=kept,
        newer_cursor=page.next or (page.tasks[-1].id if page.tasks else window.newer_cursor),
        is_at_top=page.next is None,
        searched_newer_to=page.searched_to,
        newer_count=0 if page.next is None or page.searched_to is not None else window.newer_count,
    )
    return extended if len(kept) == len(rows) else replace(extended, older_cursor=kept[-1].id, searched_to=None)


async def reload(source: DataSource, window: TaskWindow, *, cursor: UUID | None) -> TaskWindow:
    """Read the window again. At the top it takes in new rows unless they would push out the cursor's row."""
    limit = max(len(window.rows), PAGE_SIZE)
    if window.is_at_top:
        fresh = await load_newest(source, window.filter, limit=limit)
        if not _is_contiguous(fresh, window):
            # Usually only rows that arrived in the meantime lie between the two: one more page closes the gap.
            fresh = await load_older(source, fresh, max_rows=2 * limit)
        fresh = await _keep_older_rows(source, fresh, window)
        if not _drops_cursor(cursor, window, fresh):
            return fresh
    return await _reload_from_top(source, window, limit=limit)


async def reload_in_place(source: DataSource, window: TaskWindow) -> TaskWindow:
    """Read the same rows again and add none, so that nothing moves while rows are marked."""
    found = {row.id: row for row in _without_ages(await source.tasks_by_id(window.ids))}
    newer = await _fetch_newer_page(source, window)
    return replace(
        window,
        rows=tuple(found[task_id] for task_id in window.ids if task_id in found),
        newer_count=len(newer.tasks),
        deleted_ids=frozenset(window.ids) - found.keys(),
    )


async def _reload_from_top(source: DataSource, window: TaskWindow, *, limit: int) -> TaskWindow:
    """Read the window again from its first row downwards; an empty window continues its search for newer rows."""
    if not window.rows:
        return await load_newer(source, window, max_rows=limit)
    # `after` excludes the id it names, so start one above the first row.
    top = window.rows[0].id
    page = await source.list_tasks(window.filter, after=UUID(int=top.int + 1), limit=limit)
    updated = _with_newer_page(await _fetch_newer_page(source, window), window)
    fresh = replace(updated, rows=_without_ages(page.tasks), older_cursor=page.next, searched_to=page.searched_to)
    return await _keep_older_rows(source, fresh, window)


async def _keep_older_rows(source: DataSource, fresh: TaskWindow, window: TaskWindow) -> TaskWindow:
    """Keep rows that scrolling found further back, if the new search stopped earlier but reached the old window."""
    reached = fresh.older_cursor
    if fresh.searched_to is None or reached is None or not _is_contiguous(fresh, window):
        return fresh
    if window.older_cursor is not None and window.older_cursor >= reached:
        return fresh
    older_ids = [str(row.id) for row in window.rows if row.id < reached]
    page = await source.list_tasks(replace(window.filter, ids=older_ids), limit=len(older_ids)) if older_ids else None
    return replace(
        fresh,
        rows=fresh.rows + (_without_ages(page.tasks) if page else ()),
        newer_cursor=max(cursor for cursor in (fresh.newer_cursor, window.newer_cursor) if cursor is not None),
        older_cursor=window.older_cursor,
        searched_to=window.searched_to,
    )


def _is_contiguous(fresh: TaskWindow, window: TaskWindow) -> bool:
    """Whether no rows lie between the two windows. A search that ran out of time may stop above the old one."""
    if fresh.searched_to is None or fresh.older_cursor is None:
        return True
    return window.newer_cursor is not None and fresh.older_cursor <= window.newer_cursor


async def _fetch_newer_page(source: DataSource, window: TaskWindow) -> TaskPage:
    return await source.list_tasks(
        window.filter, order=TaskOrder.OLDEST_FIRST, after=window.newer_cursor, limit=MAX_NEWER_COUNT
    )


def _with_newer_page(newer: TaskPage, window: TaskWindow) -> TaskWindow:
    """The window with the count of newer rows; an unfinished search continues from its end next time."""
    if newer.tasks:
        return replace(window, is_at_top=False, newer_count=len(newer.tasks), searched_newer_to=None)
    return replace(
        window,
        newer_cursor=newer.next or window.newer_cursor,
        is_at_top=newer.next is None,
        newer_count=0,
        searched_newer_to=newer.searched_to,
    )


def _drops_cursor(cursor: UUID | None, window: TaskWindow, fresh: TaskWindow) -> bool:
    """Whether new rows pushed out the cursor's row. A row that no longer matches is gone in any case."""
    if cursor is None or cursor not in window.ids or fresh.older_cursor is None:
        return False
    return cursor < fresh.older_cursor


def _without_ages(rows: tuple[TaskSummary, ...]) -> tuple[TaskSummary, ...]:
    """Clear the ages, so that unchanged rows compare equal; ages are computed when drawing."""
    return tuple(replace(row, age=timedelta(0), silence=None) for row in rows)
