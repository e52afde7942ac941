"""Status changes are published to viewers soon and in few messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from horsies.store.listen import EVENTS_CHANNEL
from tests.support.ledger import Ledger
from tests.support.workers import worker_in_process

HALF_AN_HOUR_S = 1800
RARE_HEARTBEATS = {"recovery": {"runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 120_000}}
PREFETCHING = {"prefetch_buffer": 2, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}


class Viewer:
    """Listens to `horsies_events`."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def on_message(self, *message: object) -> None:
        self.messages.append(json.loads(str(message[-1])))
        self._changed.set()

    async def until_published(self, kind: str, task_id: str, *, within_s: float = 2.0) -> None:
        async with asyncio.timeout(within_s):
            while not any(message["kind"] == kind and task_id in message["ids"] for message in self.messages):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def viewing(url: str) -> AsyncGenerator[Viewer]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    viewer = Viewer()
    try:
        await connection.add_listener(EVENTS_CHANNEL, viewer.on_message)
        yield viewer
    finally:
        await connection.close()


async def test_claim_of_a_long_task_is_published(database_url: str) -> None:
    async with (
        Ledger.open(database_url),
        worker_in_process(database_url, config=RARE_HEARTBEATS, processes=1, grace_s=0) as worker,
        viewing(database_url) as viewer,
    ):
        task_id = await worker.send("work", HALF_AN_HOUR_S)
        await viewer.until_published("claim and start", task_id)
        (message,) = viewer.messages
        assert (message["queue"], message["from"], message["to"], message["count"]) == (
            "default",
            "PENDING",
            "RUNNING",
            1,
        )


async def test_changes_of_prefetched_tasks_are_published(database_url: str, tmp_path: Path) -> None:
    async with (
        Ledger.open(database_url) as ledger,
        viewing(database_url) as viewer,
        worker_in_process(database_url, config=RARE_HEARTBEATS | PREFETCHING, processes=1, grace_s=0) as worker,
    ):
        await ledger.until_started(await worker.send("wait_for", str(tmp_path / "first")))
        late = await worker.send("work", good_until=datetime.now(UTC) + timedelta(seconds=1))
        after = await worker.send("work", HALF_AN_HOUR_S)
        await viewer.until_published("claim", after)
        await ledger.until(lambda: ledger.fetch("SELECT FROM horsies_tasks WHERE good_until < clock_timestamp()"))
        (tmp_path / "first").touch()
        await viewer.until_published("expire claimed", late)
        await viewer.until_published("start", after)
        waiting = await worker.send("work")
        await viewer.until_published("claim", waiting)
        await worker.stop()
        await viewer.until_published("release", waiting)
