"""The outage grace that a worker publishes after its start and after an outage."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from horsies.engine import events
from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.ledger_app import QUICK_RECOVERY
from tests.support.workers import InProcessWorker, worker_in_process

HEARTBEAT_S = QUICK_RECOVERY["runner_heartbeat_interval_ms"] / 1000
THRESHOLD_S = QUICK_RECOVERY["running_stale_threshold_ms"] / 1000


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def health_of(ledger: Ledger, worker: InProcessWorker) -> dict[str, Any]:
    sql = "SELECT health, started_at FROM horsies_workers WHERE id = $1::text::uuid"
    (row,) = await ledger.fetch(sql, worker.worker_id)
    return {**json.loads(row["health"]), "started_at": row["started_at"]}


async def test_worker_publishes_listening_since_at_its_start(ledger: Ledger, database_url: str) -> None:
    async with worker_in_process(database_url, processes=1) as worker:

        async def is_published() -> bool:
            return (await health_of(ledger, worker))["listening_since"] is not None

        await ledger.until(is_published, within_s=HEARTBEAT_S)
        health = await health_of(ledger, worker)
        since, until = (datetime.fromisoformat(health[name]) for name in ("listening_since", "outage_grace_until"))
        assert since >= health["started_at"]
        assert (until - since).total_seconds() == THRESHOLD_S
        assert not worker.events_of(events.OutageGraceStarted), "the start is not an outage"


async def test_outage_grace_lasts_one_threshold_after_an_outage(ledger: Ledger, database_url: str) -> None:
    async with (
        Proxy(database_url).running() as proxy,
        worker_in_process(database_url, config={"database_url": proxy.url}, processes=1) as worker,
    ):
        await worker.until(lambda: worker.silent_s < HEARTBEAT_S)
        proxy.cut()
        await worker.until(lambda: worker.silent_s > 3 * HEARTBEAT_S)
        proxy.restore()
        began = await worker.wait_for_event(events.OutageGraceStarted)
        assert began.outage_s > 3 * HEARTBEAT_S
        assert datetime.fromisoformat((await health_of(ledger, worker))["outage_grace_until"]) == began.until
        ended = await worker.wait_for_event(events.OutageGraceEnded)
        # On a busy machine the worker may be silent again, which prolongs the grace and is reported as another start.
        assert ended.outage_s == worker.events_of(events.OutageGraceStarted)[-1].outage_s

        async def are_stored() -> bool:
            return bool(await ledger.events("outage_grace_started") and await ledger.events("outage_grace_ended"))

        await ledger.until(are_stored)
