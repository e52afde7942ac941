from __future__ import annotations

import asyncio

import pytest
from textual.message import Message

from horsies.errors import DatabaseUnreachable
from horsies_ops.reads.changes import Topic
from horsies_tui.data.queries import LiveQueries, LiveQuery
from horsies_tui.data.source import DataSource
from horsies_tui.demo.source import DemoSource
from horsies_tui.messages import Fetched, FetchFailed
from tests.support.tui import frozen_system


class Desk:
    """A store, somebody who wants something, and the answers."""

    def __init__(self, *, refresh_s: float = 0.0, **want: float) -> None:
        self.store = LiveQueries(refresh_s=refresh_s)
        self.asked = 0
        self.may_answer = asyncio.Semaphore(0)
        self.fails: Exception | None = None
        self.told: asyncio.Queue[Message] = asyncio.Queue()
        self.most_at_once = 0
        self._at_once = 0
        wanted = LiveQuery(name="tasks", fetch=self._fetch, invalidated_by=frozenset({Topic.STATUS_CHANGE}), **want)
        self.store.set_queries([wanted], self.told.put_nowait)
        self.store.connect(DemoSource(frozen_system(10), read_only=False, pace_s=None))

    async def _fetch(self, _: DataSource) -> int:
        self.asked += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await self.may_answer.acquire()
        self._at_once -= 1
        if self.fails is not None:
            raise self.fails
        return self.asked

    async def answer(self) -> Message:
        self.may_answer.release()
        return await asyncio.wait_for(self.told.get(), 5)


async def test_visible_query_is_fetched_immediately() -> None:
    desk = Desk()
    told = await desk.answer()
    assert isinstance(told, Fetched)
    assert (told.name, told.value) == ("tasks", 1)


async def test_burst_of_changes_causes_one_further_fetch() -> None:
    desk = Desk()
    await asyncio.sleep(0)
    for _ in range(500):
        desk.store.invalidate(Topic.STATUS_CHANGE)
    await desk.answer()
    second = await desk.answer()
    assert isinstance(second, Fetched)
    assert desk.asked == 2
    assert desk.most_at_once == 1


async def test_unrelated_change_causes_no_fetch() -> None:
    desk = Desk()
    await desk.answer()
    desk.store.invalidate(Topic.EVENT)
    desk.may_answer.release()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(desk.told.get(), 0.05)


async def test_pause_allows_only_manual_refresh_and_counts_changes() -> None:
    desk = Desk()
    await desk.answer()
    desk.store.pause()
    desk.store.invalidate(Topic.STATUS_CHANGE, count=212)
    assert desk.store.pending_changes == 212
    desk.store.refresh()
    await desk.answer()
    assert desk.asked == 2
    assert desk.store.pending_changes == 0


async def test_query_is_polled_without_changes() -> None:
    desk = Desk(poll_s=0.01)
    await desk.answer()
    assert isinstance(await desk.answer(), Fetched)


async def test_failed_query_is_reported_and_retried() -> None:
    desk = Desk()
    desk.fails = DatabaseUnreachable("gone")
    assert isinstance(await desk.answer(), FetchFailed)
    desk.fails = None
    assert isinstance(await desk.answer(), Fetched)


async def test_unexpected_exception_is_reported_and_retried() -> None:
    desk = Desk()
    desk.fails = ValueError("what is this")
    told = await desk.answer()
    assert isinstance(told, FetchFailed)
    assert told.error.message == "ValueError: what is this"
    desk.fails = None
    assert isinstance(await desk.answer(), Fetched)


async def test_result_for_left_screen_is_discarded() -> None:
    desk = Desk()
    await asyncio.sleep(0)
    desk.store.set_queries([], desk.told.put_nowait)
    desk.may_answer.release()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(desk.told.get(), 0.05)
