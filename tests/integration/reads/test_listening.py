"""Changes arrive as they happen, and the feed says how it fares."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

import horsies_ops
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies_ops.reads.live import Change, FeedStatus, FeedTiming, Topic, listen
from tests.support.faults import Proxy
from tests.support.rows import insert_task

QUICK = FeedTiming(
    probe_interval_s=0.2, answer_timeout_s=0.2, poll_interval_s=0.2, initial_backoff_s=0.05, max_backoff_s=0.1
)


async def _until(changes: AsyncGenerator[Change], is_meant: Callable[[Change], bool]) -> Change:
    async with asyncio.timeout(20):
        async for change in changes:
            if is_meant(change):
                return change
    raise AssertionError


def _feed(kind: FeedStatus) -> Callable[[Change], bool]:
    return lambda change: (change.topic, change.kind) == (Topic.FEED, kind)


async def _notify(url: str, channel: str, payload: object) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "SELECT pg_notify($1, $2)", channel, payload if isinstance(payload, str) else json.dumps(payload)
    )
    await connection.close()


@asynccontextmanager
async def _through(proxy: Proxy) -> AsyncGenerator[AsyncGenerator[Change]]:
    link = ConnectionSpec(url=proxy.url, masked_url="test", read_only=True)
    async with Database(link) as database, aclosing(listen(database, link, timing=QUICK)) as changes:
        yield changes


async def test_what_is_said_on_each_channel_becomes_a_change(database_url: str) -> None:
    task, other, worker = uuid4(), uuid4(), uuid4()
    async with (
        horsies_ops.connect(database_url, read_only=True) as ops,
        aclosing(ops.listen()) as changes,
    ):
        await _until(changes, _feed(FeedStatus.LIVE))
        await insert_task(database_url, queue_name="mail")
        await _notify(database_url, "horsies_task_done", f"{task},{other}")
        await _notify(database_url, "horsies_workflow_done", str(task))
        moved = {"kind": "fail", "queue": "mail", "from": "RUNNING", "to": "FAILED", "count": 38, "ids": [str(task)]}
        await _notify(database_url, "horsies_events", moved)
        await _notify(database_url, "horsies_events", {"kind": "heartbeats", "worker_id": str(worker), "count": 3})
        await _notify(database_url, "horsies_events", {"kind": "worker_lost", "from": None, "to": None, "ids": []})
        heard = [await anext(changes) for _ in range(6)]
    assert [(each.topic, each.kind, each.count) for each in heard] == [
        (Topic.TASK_NEW, "task_new", 1),
        (Topic.TASK_DONE, "task_done", 2),
        (Topic.WORKFLOW, "workflow", 1),
        (Topic.STATUS_CHANGE, "fail", 38),
        (Topic.HEARTBEATS, "heartbeats", 3),
        (Topic.EVENT, "worker_lost", 1),
    ]
    assert (heard[0].queue, heard[1].ids, heard[4].worker_id) == ("mail", (task, other), worker)
    assert (heard[3].from_status, heard[3].to_status, heard[3].ids) == ("RUNNING", "FAILED", (task,))


@pytest.mark.parametrize("payload", ["", "null", "[]", "7", '"x"', '{"count": 1}', '{"kind": "x", "count": "many"}'])
async def test_what_nobody_of_ours_has_said_is_passed_over(database_url: str, payload: str) -> None:
    async with horsies_ops.connect(database_url) as ops, aclosing(ops.listen()) as changes:
        await _until(changes, _feed(FeedStatus.LIVE))
        await _notify(database_url, "horsies_events", payload)
        await _notify(database_url, "horsies_task_done", "no id")
        assert (await anext(changes)).ids == ()


async def test_a_feed_that_was_cut_says_so_and_comes_back_by_itself(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy, _through(proxy) as changes:
        await _until(changes, _feed(FeedStatus.LIVE))
        proxy.cut()
        lost = await _until(changes, _feed(FeedStatus.LOST))
        assert lost.detail
        proxy.heal()
        await _until(changes, _feed(FeedStatus.RESTORED))
        await insert_task(database_url, queue_name="mail")
        assert (await _until(changes, lambda change: change.topic == Topic.TASK_NEW)).queue == "mail"


async def test_a_line_that_looks_alive_and_carries_nothing_is_found_out(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy, _through(proxy) as changes:
        await _until(changes, _feed(FeedStatus.LIVE))
        proxy.freeze()
        await _until(changes, _feed(FeedStatus.LOST))
        proxy.heal()
        await _until(changes, _feed(FeedStatus.RESTORED))


async def test_where_only_listening_is_impossible_it_ticks(database: Database, database_url: str) -> None:
    nowhere = replace(database.connection_spec, url=database_url + "&port=1")
    async with aclosing(listen(database, nowhere, timing=QUICK)) as changes:
        ticks = [await _until(changes, _feed(FeedStatus.POLLING)) for _ in range(2)]
    assert ticks[0].detail


async def test_a_feed_that_is_closed_leaves_no_connection_behind(database: Database, database_url: str) -> None:
    async with aclosing(listen(database, database.connection_spec)) as changes:
        await _until(changes, _feed(FeedStatus.LIVE))
    left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    connection = await asyncpg.connect(database_url)
    async with asyncio.timeout(10):
        while await connection.fetchval(left):
            pass  # the server sees the end of a connection a moment after us
    await connection.close()
