"""The live feed: changes from notifications, probing, polling and reconnecting."""

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
from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.events import FeedTiming
from tests.support.faults import Proxy
from tests.support.rows import insert_task
from tests.support.store import ops_on

FAST = FeedTiming(
    probe_interval_s=0.2, answer_timeout_s=0.2, poll_interval_s=0.2, initial_backoff_s=0.05, max_backoff_s=0.1
)


async def _until(changes: AsyncGenerator[Change], matches: Callable[[Change], bool]) -> Change:
    async with asyncio.timeout(20):
        async for change in changes:
            if matches(change):
                return change
    raise AssertionError


def _is_feed_status(kind: FeedStatus) -> Callable[[Change], bool]:
    return lambda change: (change.topic, change.kind) == (Topic.FEED, kind)


async def _notify(url: str, channel: str, payload: object) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "SELECT pg_notify($1, $2)", channel, payload if isinstance(payload, str) else json.dumps(payload)
    )
    await connection.close()


@asynccontextmanager
async def _listen_through(proxy: Proxy) -> AsyncGenerator[AsyncGenerator[Change]]:
    spec = ConnectionSpec(url=proxy.url, masked_url="test", read_only=True)
    async with Database(spec) as database, aclosing(ops_on(database).listen(timing=FAST)) as changes:
        yield changes


async def test_notifications_of_each_channel_become_changes(database_url: str) -> None:
    task, other, worker = uuid4(), uuid4(), uuid4()
    async with (
        horsies_ops.connect(database_url, read_only=True) as ops,
        aclosing(ops.listen()) as changes,
    ):
        await _until(changes, _is_feed_status(FeedStatus.STARTED))
        await insert_task(database_url, queue_name="mail")
        await _notify(database_url, "horsies_task_done", f"{task},{other}")
        await _notify(database_url, "horsies_workflow_done", str(task))
        change = {"kind": "fail", "queue": "mail", "from": "RUNNING", "to": "FAILED", "count": 38, "ids": [str(task)]}
        await _notify(database_url, "horsies_events", change)
        await _notify(database_url, "horsies_events", {"kind": "heartbeats", "worker_id": str(worker), "count": 3})
        await _notify(database_url, "horsies_events", {"kind": "worker_lost", "from": None, "to": None, "ids": []})
        received = [await anext(changes) for _ in range(6)]
    assert [(change.topic, change.kind, change.count) for change in received] == [
        (Topic.TASK_NEW, "task_new", 1),
        (Topic.TASK_DONE, "task_done", 2),
        (Topic.WORKFLOW, "workflow", 1),
        (Topic.STATUS_CHANGE, "fail", 38),
        (Topic.HEARTBEATS, "heartbeats", 3),
        (Topic.EVENT, "worker_lost", 1),
    ]
    assert (received[0].queue, received[1].ids, received[4].worker_id) == ("mail", (task, other), worker)
    assert (received[3].from_status, received[3].to_status, received[3].ids) == ("RUNNING", "FAILED", (task,))


@pytest.mark.parametrize("payload", ["", "null", "[]", "7", '"x"', '{"count": 1}', '{"kind": "x", "count": "many"}'])
async def test_malformed_notifications_are_ignored(database_url: str, payload: str) -> None:
    async with horsies_ops.connect(database_url) as ops, aclosing(ops.listen()) as changes:
        await _until(changes, _is_feed_status(FeedStatus.STARTED))
        await _notify(database_url, "horsies_events", payload)
        await _notify(database_url, "horsies_task_done", "no id")
        assert (await anext(changes)).ids == ()


async def test_disconnected_feed_reports_lost_and_reconnects(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy, _listen_through(proxy) as changes:
        await _until(changes, _is_feed_status(FeedStatus.STARTED))
        proxy.cut()
        lost = await _until(changes, _is_feed_status(FeedStatus.LOST))
        assert lost.detail
        proxy.restore()
        await _until(changes, _is_feed_status(FeedStatus.RESTORED))
        await insert_task(database_url, queue_name="mail")
        assert (await _until(changes, lambda change: change.topic == Topic.TASK_NEW)).queue == "mail"


async def test_frozen_connection_is_detected_by_the_probe(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy, _listen_through(proxy) as changes:
        await _until(changes, _is_feed_status(FeedStatus.STARTED))
        proxy.freeze()
        await _until(changes, _is_feed_status(FeedStatus.LOST))
        proxy.restore()
        await _until(changes, _is_feed_status(FeedStatus.RESTORED))


async def test_feed_polls_if_listening_is_impossible(database: Database, database_url: str) -> None:
    unreachable = replace(database.connection_spec, url=database_url + "&port=1")
    async with aclosing(ops_on(database, direct_spec=unreachable).listen(timing=FAST)) as changes:
        ticks = [await _until(changes, _is_feed_status(FeedStatus.POLLING)) for _ in range(2)]
    assert ticks[0].detail


async def test_closed_feed_leaves_no_connection(database: Database, database_url: str) -> None:
    async with aclosing(ops_on(database).listen()) as changes:
        await _until(changes, _is_feed_status(FeedStatus.STARTED))
    listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    connection = await asyncpg.connect(database_url)
    async with asyncio.timeout(10):
        while await connection.fetchval(listeners):
            pass  # the server notices the end of a connection a moment later
    await connection.close()
