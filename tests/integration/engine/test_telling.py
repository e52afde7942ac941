"""Those who watch hear of every move of a worker, soon and in few messages."""

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
NEVER = {"recovery": {"runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 120_000}}
PREFETCHING = {"prefetch_buffer": 2, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}


class Watching:
    """Somebody who hears `horsies_events`."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def hear(self, *message: object) -> None:
        self.heard.append(json.loads(str(message[-1])))
        self._changed.set()

    async def until_told(self, kind: str, task_id: str, *, within_s: float = 2.0) -> None:
        async with asyncio.timeout(within_s):
            while not any(each["kind"] == kind and task_id in each["ids"] for each in self.heard):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watching(url: str) -> AsyncGenerator[Watching]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    someone = Watching()
    try:
        await connection.add_listener(EVENTS_CHANNEL, someone.hear)
        yield someone
    finally:
        await connection.close()


async def test_a_claim_is_told_though_its_task_runs_for_long(database_url: str) -> None:
    async with (
        Ledger.open(database_url),
        worker_in_process(database_url, config=NEVER, processes=1, grace_s=0) as worker,
        watching(database_url) as someone,
    ):
        task_id = await worker.send("work", HALF_AN_HOUR_S)
        await someone.until_told("claim and start", task_id)
        (told,) = someone.heard
        assert (told["queue"], told["from"], told["to"], told["count"]) == ("default", "PENDING", "RUNNING", 1)


async def test_what_becomes_of_claims_that_wait_is_told(database_url: str, tmp_path: Path) -> None:
    async with (
        Ledger.open(database_url) as ledger,
        watching(database_url) as someone,
        worker_in_process(database_url, config=NEVER | PREFETCHING, processes=1, grace_s=0) as worker,
    ):
        await ledger.until_started(await worker.send("wait_for", str(tmp_path / "first")))
        late = await worker.send("work", good_until=datetime.now(UTC) + timedelta(seconds=1))
        after = await worker.send("work", HALF_AN_HOUR_S)
        await someone.until_told("claim", after)
        await ledger.until(lambda: ledger.fetch("SELECT FROM horsies_tasks WHERE good_until < clock_timestamp()"))
        (tmp_path / "first").touch()
        await someone.until_told("expire when claimed", late)
        await someone.until_told("start", after)
        waiting = await worker.send("work")
        await someone.until_told("claim", waiting)
        await worker.stop()
        await someone.until_told("release", waiting)
