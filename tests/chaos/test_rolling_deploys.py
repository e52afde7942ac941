"""F15: workers of different versions leave tasks that they do not know to those that do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from horsies import AppConfig, Horsies, PostgresConfig
from horsies.engine import events
from horsies.engine.unknown_tasks import UnknownTasks
from tests.support.ledger import Ledger, insert_pending_tasks, statuses
from tests.support.ledger_app import ledger_app, work
from tests.support.workers import send, worker_in_process, worker_process

OLD: dict[str, Any] = {"missing_tasks": ["work", "nap"]}
NEW: dict[str, Any] = {"missing_tasks": ["work_again"]}
BILLING = """
import os

from horsies import AppConfig, Horsies, PostgresConfig
from tests.support.ledger_app import work

app = Horsies(AppConfig(broker=PostgresConfig(database_url=os.environ["LEDGER_URL"])))
app.task("invoice")(work)
"""
"""An app that has nothing to do with the other one."""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Horsies]:
    """The app that sends the tasks: it knows all of them."""
    app = ledger_app(database_url)
    yield app
    await app.close_async()


async def test_mixed_workers_run_everything_that_one_of_them_knows(
    ledger: Ledger, database_url: str, app: Horsies
) -> None:
    async with (
        worker_in_process(database_url, config=OLD) as old,
        worker_in_process(database_url, config=NEW) as new,
    ):
        sent = [await send(app, name, 0.01) for _ in range(20) for name in ("work", "work_again", "nap")]
        rows = await ledger.until_terminal(*sent, within_s=30)
        assert {(row["status"], row["attempts"], row["retry_count"]) for row in rows.values()} == {("COMPLETED", 1, 0)}
        assert await ledger.violations(sent) == []
        unknown = {event.task_name for worker in (old, new) for event in worker.events_of(events.TaskUnknown)}
    assert unknown <= {"work", "nap", "work_again"}


async def test_unknown_task_waits_for_a_worker_that_knows_it(ledger: Ledger, database_url: str, app: Horsies) -> None:
    async with worker_in_process(database_url, config=OLD) as old:
        task_id = await send(app, "work")
        await old.wait_for_event(events.TaskUnknown)
        await old.until(lambda: not old.has_in_flight(task_id))
        claims = (await ledger.row(task_id))["claim_token"]
        known = await send(app, "plain")
        await ledger.until_terminal(known)
        row = await ledger.row(task_id)
        assert (row["status"], row["attempts"], row["retry_count"]) == ("PENDING", 0, 0)
        assert row["claim_token"] == claims, "claimed again although it is unknown"
        async with worker_in_process(database_url, config=NEW):
            assert (await ledger.until_terminal(task_id))[task_id]["status"] == "COMPLETED"
    assert len(await ledger.events("task_unknown")) == 1


async def test_task_that_no_worker_knows_fails_after_the_grace(ledger: Ledger, database_url: str, app: Horsies) -> None:
    async with worker_in_process(database_url, config=OLD | {"unknown_task_grace_s": 2}):
        task_id = await send(app, "work")
        row = (await ledger.until_terminal(task_id, within_s=20))[task_id]
        assert (row["status"], row["error_code"], row["attempts"]) == ("FAILED", "WORKER_RESOLUTION_ERROR", 0)
        assert row["terminal_at"] - row["enqueued_at"] >= timedelta(seconds=2)
        assert "'work' for 2s" in row["result"]


async def test_task_fails_at_once_without_a_grace(ledger: Ledger, database_url: str, app: Horsies) -> None:
    async with worker_in_process(database_url, config=OLD | {"unknown_task_grace_s": 0}):
        task_id = await send(app, "work")
        row = (await ledger.until_terminal(task_id))[task_id]
        assert (row["status"], row["error_code"], row["attempts"]) == ("FAILED", "WORKER_RESOLUTION_ERROR", 1)


async def test_two_apps_on_one_database_run_their_own_tasks(
    ledger: Ledger, database_url: str, app: Horsies, tmp_path: Path
) -> None:
    """They share the queue and the database, and not one task."""
    (tmp_path / "billing.py").write_text(BILLING)
    billing = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    billing.task("invoice")(work)
    async with (
        worker_in_process(database_url) as worker,
        worker_process(database_url, "--processes", "1", locator=f"{tmp_path / 'billing.py'}:app"),
    ):
        sent = [
            await send(*sender, 0.01)
            for _ in range(40)
            for sender in ((app, "work"), (app, "nap"), (billing, "invoice"))
        ]
        rows = await ledger.until_terminal(*sent, within_s=60)
        assert {(row["status"], row["attempts"], row["retry_count"]) for row in rows.values()} == {("COMPLETED", 1, 0)}
        assert await ledger.violations(sent) == []
        assert {event.task_name for event in worker.events_of(events.TaskUnknown)} <= {"invoice"}
    await billing.close_async()


async def test_notification_taken_for_an_echo_is_not_ignored(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The echo of a release may be lost, and the notification that comes instead is that of a new task."""
    config = {"resilience": {"notify_poll_interval_ms": 30_000}}
    async with worker_in_process(database_url, config=config) as worker:
        await ledger.until_terminal(await worker.send("plain"))
        await asyncio.sleep(0.5)  # the claim that follows each notification 0.1 s later would take the second task too
        monkeypatch.setattr(UnknownTasks, "is_own_notification", Mock(return_value=True))
        await ledger.until_terminal(await worker.send("plain"), within_s=10)


async def test_known_tasks_run_behind_many_unknown_ones(ledger: Ledger, database_url: str) -> None:
    """`bench.draining --unknown` measures the rate, and the tests of query plans how much each claim reads."""
    async with worker_in_process(database_url, config=OLD, processes=2) as worker:
        unknown = await insert_pending_tasks(ledger, "work", count=100_000)
        await worker.wait_for_event(events.TaskUnknown)
        known = await insert_pending_tasks(ledger, "plain", count=2_000)
        await ledger.until_terminal(*known, within_s=120)

        async def is_released() -> bool:
            return not await ledger.fetch("SELECT FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') LIMIT 1")

        await ledger.until(is_released)
        (row,) = await ledger.fetch("SELECT sum(claim_token) AS claims FROM horsies_tasks WHERE task_name = 'work'")
        assert row["claims"] < 2_000, "unknown tasks were claimed again"
        assert set(await statuses(ledger, *unknown[:1000])) == {"PENDING"}
