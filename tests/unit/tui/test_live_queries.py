from __future__ import annotations

import asyncio

import pytest
from textual.message import Message

from horsies.errors import DatabaseUnreachable
from horsies_ops.reads.changes import Topic
from horsies_ops.source import DataSource
from horsies_tui.data.queries import Fetched, FetchFailed, LiveQueries, LiveQuery
from tests.support.fake_system.source import FakeSource
from tests.support.tui import frozen_system


class QueryHarness:
    """Live queries with one query whose results the test releases one by one."""

    def __init__(self, *, refresh_s: float = 0.0, **fields: float) -> None:
        self.queries = LiveQueries(refresh_s=refresh_s)
        self.fetch_count = 0
        self.may_answer = asyncio.Semaphore(0)
        self.error: Exception | None = None
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.max_concurrent = 0
        self._concurrent = 0
        self.drawn: list[int] = []
        query = LiveQuery("tasks", self._fetch, self.drawn.append, frozenset({Topic.STATUS_CHANGE}), **fields)
        self.queries.set_queries([query], self.messages.put_nowait)
        self.queries.connect(FakeSource(frozen_system(10), read_only=False))

    async def _fetch(self, _: DataSource) -> int:
        self.fetch_count += 1
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        await self.may_answer.acquire()
        self._concurrent -= 1
        if self.error is not None:
            raise self.error
        return self.fetch_count

    async def answer(self) -> Message:
        self.may_answer.release()
        return await asyncio.wait_for(self.messages.get(), 5)


async def test_visible_query_is_fetched_immediately() -> None:
    harness = QueryHarness()
    message = await harness.answer()
    assert isinstance(message, Fetched)
    message.draw()
    assert harness.drawn == [1]


async def test_burst_of_changes_causes_one_further_fetch() -> None:
    harness = QueryHarness()
    await asyncio.sleep(0)
    for _ in range(500):
        harness.queries.invalidate(Topic.STATUS_CHANGE)
    await harness.answer()
    second = await harness.answer()
    assert isinstance(second, Fetched)
    assert harness.fetch_count == 2
    assert harness.max_concurrent == 1


async def test_unrelated_change_causes_no_fetch() -> None:
    harness = QueryHarness()
    await harness.answer()
    harness.queries.invalidate(Topic.EVENT)
    harness.may_answer.release()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(harness.messages.get(), 0.05)


async def test_pause_allows_only_manual_refresh_and_counts_changes() -> None:
    harness = QueryHarness()
    await harness.answer()
    harness.queries.pause()
    harness.queries.invalidate(Topic.STATUS_CHANGE, count=212)
    assert harness.queries.pending_changes == 212
    harness.queries.refresh()
    await harness.answer()
    assert harness.fetch_count == 2
    assert harness.queries.pending_changes == 0


async def test_query_is_polled_without_changes() -> None:
    harness = QueryHarness(poll_s=0.01)
    await harness.answer()
    assert isinstance(await harness.answer(), Fetched)


async def test_failed_query_is_reported_and_retried() -> None:
    harness = QueryHarness()
    harness.error = DatabaseUnreachable("gone")
    assert isinstance(await harness.answer(), FetchFailed)
    harness.error = None
    assert isinstance(await harness.answer(), Fetched)


async def test_unexpected_exception_is_reported_and_retried() -> None:
    harness = QueryHarness()
    harness.error = ValueError("unexpected")
    message = await harness.answer()
    assert isinstance(message, FetchFailed)
    assert message.error.message == "ValueError: unexpected"
    harness.error = None
    assert isinstance(await harness.answer(), Fetched)


async def test_result_for_left_screen_is_discarded() -> None:
    harness = QueryHarness()
    await asyncio.sleep(0)
    harness.queries.set_queries([], harness.messages.put_nowait)
    harness.may_answer.release()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(harness.messages.get(), 0.05)
