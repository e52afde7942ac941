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
    is_at_top: bool = True
    has_older: bool = False
    newer: int = 0
    """How many newer ones are known to wait above; `MOST_WAITING` stands for more."""
    gone: frozenset[UUID] = frozenset()
    """Rows that were in it and exist no more."""

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(row.id for row in self.rows)


async def newest(source: Source, wanted: TaskFilter, *, limit: int = PAGE) -> TaskWindow:
    page = await source.list_tasks(wanted, limit=limit)
    return TaskWindow(filter=wanted, rows=_steady(page.tasks), has_older=page.next is not None)


async def oldest(source: Source, wanted: TaskFilter) -> TaskWindow:
    """The last page."""
    page = await source.list_tasks(wanted, order=Order.OLDEST_FIRST, limit=PAGE)
    is_whole = page.next is None
    return TaskWindow(
        filter=wanted, rows=_steady(page.tasks[::-1]), is_at_top=is_whole, newer=0 if is_whole else MOST_WAITING
    )


async def older(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its end, and with no more rows than `most`: the newest ones make room."""
    if not window.rows or not window.has_older:
        return window
    page = await source.list_tasks(window.filter, after=window.rows[-1].id, limit=PAGE)
    rows = window.rows + _steady(page.tasks)
    kept = rows[-max(most, PAGE) :]
    is_at_top = window.is_at_top and len(kept) == len(rows)
    return replace(window, rows=kept, has_older=page.next is not None, is_at_top=is_at_top)


async def newer(source: Source, window: TaskWindow, *, most: int) -> TaskWindow:
    """The window with a page more at its beginning; the oldest ones make room."""
    if not window.rows or window.is_at_top:
        return window
    page = await source.list_tasks(window.filter, order=Order.OLDEST_FIRST, after=window.rows[0].id, limit=PAGE)
    rows = _steady(page.tasks[::-1]) + window.rows
    kept = rows[: max(most, PAGE)]
    is_at_top = page.next is None
    return replace(
        window,
        rows=kept,
        is_at_top=is_at_top,
        has_older=window.has_older or len(kept) < len(rows),
        newer=0 if is_at_top else window.newer,
    )


async def again(source: Source, window: TaskWindow, *, cursor: UUID | None) -> TaskWindow:
    """The same stretch as it is now."""
    limit = max(len(window.rows), PAGE)
    if window.is_at_top:
        fresh = await newest(source, window.filter, limit=limit)
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
    # An id is a number, and `after` leaves out the row that it names.
    just_above = UUID(int=window.rows[0].id.int + 1)
    page = await source.list_tasks(window.filter, after=just_above, limit=limit)
    waiting = await _waiting(source, window)
    return replace(
        window, rows=_steady(page.tasks), has_older=page.next is not None, is_at_top=waiting == 0, newer=waiting
    )


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
