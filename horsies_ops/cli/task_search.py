"""Looking for tasks page by page until there are enough of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from horsies_ops.cli.ages import instant
from horsies_ops.reads.tasks import TaskPage

if TYPE_CHECKING:
    from horsies_ops.reads.tasks import TaskSummary

Listing = Callable[[UUID | None, int], Awaitable[TaskPage]]
"""Gives the page after a task, of so many at most."""


async def search(listing: Listing, *, after: UUID | None, limit: int, say: Callable[[str], None]) -> TaskPage:
    """A page that is full unless the tasks end; `say` hears how far back the search has come."""
    found: tuple[TaskSummary, ...] = ()
    while True:
        page = await listing(after, limit - len(found))
        found += page.tasks
        if page.searched_to is None:
            return replace(page, tasks=found)
        say(f"searched back to {instant(page.searched_to)}, found {len(found):,}")
        after = page.next
