"""The tasks that a selector means, as they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.store.actions import ACTIONS
from horsies_ops.reads.tasks import list_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from horsies.store.actions import TargetRow
    from horsies.store.db import Database
    from horsies_ops.actions.selector import Selector
    from horsies_ops.reads.filter import TaskFilter

PAGE: Final = 5000


async def chosen(database: Database, selector: Selector, limit: int | None) -> AsyncGenerator[Sequence[TargetRow]]:
    """At most `limit` of them, some thousand at a time; of a filter's, the newest first."""
    if selector.ids is not None:
        for start in range(0, len(selector.ids[:limit]), PAGE):
            yield await database.fetch(ACTIONS.targets, selector.ids[:limit][start : start + PAGE], None)
    elif selector.filter is not None:
        async for rows in _matching(database, selector, selector.filter, limit):
            yield rows


async def _matching(
    database: Database, selector: Selector, wanted: TaskFilter, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    """Page by page from the newest, so that what arrives meanwhile is never met."""
    after, left = None, limit
    while left is None or left > 0:
        page = await list_tasks(database, wanted, after=after, limit=PAGE)
        shown = {task.id: task.status for task in page.tasks}
        rows = await database.fetch(ACTIONS.targets, list(shown), selector.as_of)
        # One that has moved between the two looks may not match any more.
        rows = [row for row in reversed(rows) if row.status == shown[row.id]][:left]
        left = None if left is None else left - len(rows)
        yield rows
        if page.next is None:
            return
        after = page.next
