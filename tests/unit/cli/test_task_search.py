from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from horsies_ops.cli.commands.task import page_document, search_pages
from horsies_ops.reads.tasks import TaskPage

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HALFWAY = UUID(int=2)


async def _listing(after: UUID | None, limit: int) -> TaskPage:
    """Nothing matches, and the first page runs out of time."""
    assert limit == 50
    is_over = after is None
    return TaskPage(tasks=(), next=HALFWAY if is_over else None, searched_to=NOON if is_over else None)


async def test_search_continues_after_timed_out_page_and_shows_progress() -> None:
    messages: list[str] = []
    page = await search_pages(_listing, after=None, limit=50, progress=messages.append)
    assert (page.next, page.searched_to) == (None, None)
    assert messages == ["searched back to 2026-03-01 12:00:00Z, found 0"]


async def test_page_document_has_searched_to_and_next() -> None:
    document = page_document(await _listing(None, 50))
    assert (document["searched_to"], document["next"]) == (NOON, HALFWAY)
