"""Which workers count as alive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from horsies_ops.reads.workers import live_workers
from tests.support.task_rows import insert

if TYPE_CHECKING:
    from horsies.store.db import Database


async def test_workers_that_stopped_or_fell_silent_are_not_live(database: Database, database_url: str) -> None:
    now = datetime.now(UTC)
    for state, at in (("running", now), ("running", now - timedelta(hours=1)), ("stopped", now), ("lost", now)):
        worker = {"id": uuid4(), "hostname": "h", "pid": 1, "version": "1", "processes": 1}
        await insert(database_url, "horsies_workers", **worker, state=state, last_heartbeat_at=at)
    assert await live_workers(database, threshold=timedelta(minutes=5)) == 1
