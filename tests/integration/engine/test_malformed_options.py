"""Options that another program stored: the worker fails the task or ignores what it cannot read, and goes on."""

from __future__ import annotations

import pytest

from horsies.engine import pool_events
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import send, worker_in_process

DEEP = "[" * 5_000 + "]" * 5_000
TYPES = {"task_options": "jsonb", "flags": "jsonb", "good_until": "timestamptz"}
MALFORMED = [
    ("task_options", '{"timeout_ms": "soon"}'),
    ("task_options", '{"timeout_ms": [5]}'),
    ("task_options", f'{{"timeout_ms": {10**400}}}'),
    ("task_options", "[]"),
    ("task_options", DEEP),
    ("flags", DEEP),
    ("task_options", f'{{"retry_policy": {DEEP}}}'),
    ("good_until", "20000-01-01T00:00:00Z"),
]


async def store_malformed(url: str, ledger: Ledger) -> list[str]:
    """Store two tasks with each option, one of which fails; returns their ids."""
    app, task_ids = ledger_app(url), list[str]()
    for column, value in MALFORMED:
        for name in ("work", "raise_unmapped"):
            task_ids.append(await send(app, name))
            # A row that was claimed before is exempt from the checks of new rows.
            change = f"claim_token = 1, {column} = $2::text::{TYPES[column]}"
            await ledger.fetch(f"UPDATE horsies_tasks SET {change} WHERE id = $1::text::uuid", task_ids[-1], value)
    await app.close_async()
    return task_ids


async def test_worker_survives_malformed_options(database_url: str) -> None:
    async with Ledger.open(database_url) as ledger:
        malformed = await store_malformed(database_url, ledger)
        async with worker_in_process(database_url, processes=1) as worker:
            later = await worker.send("work")
            rows = await ledger.until_terminal(later, *malformed, within_s=20)
    assert rows[later]["status"] == "COMPLETED"
    assert {row["error_code"] for row in rows.values()} <= {None, "UNHANDLED_EXCEPTION", "WORKER_SERIALIZATION_ERROR"}


async def test_task_whose_end_cannot_be_decided_is_left_to_recovery(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its heartbeats would keep it RUNNING for as long as the worker lives."""

    def fail(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr(pool_events, "interruption", fail)
    async with Ledger.open(database_url) as ledger, worker_in_process(database_url, processes=1) as worker:
        task_id = await worker.send("nap", 60)
        await ledger.until_started(task_id)
        await worker.kill_children()
        await worker.until(lambda: not worker.has_in_flight(task_id))
    (record,) = [record for record in caplog.records if record.message == "cannot decide how a task ended"]
    assert record.__dict__["task_id"] == str(task_id)
