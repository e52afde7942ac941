"""Sending a task by name, without its code."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from horsies.errors import HorsiesError
from horsies.model.settings import PostgresConfig
from horsies.testing import drain
from horsies_ops.ops import Ops, open_ops
from tests.support.store import Connection, collect_notifications, fetch_rows, make_app, only_row


async def test_sent_task_is_stored_and_audited(ops: Ops, connection: Connection) -> None:
    report = await ops.send("mail.send", [1], {"to": "ada"}, queue="mail", delay=60, priority=7, reason="manual send")
    columns = ("id", "task_name", "queue_name", "priority", "args", "kwargs", "enqueued_at > now()")
    stored = await only_row(connection, "horsies_tasks", *columns)
    assert stored == (report.task_ids[0], "mail.send", "mail", 7, "[1]", json.dumps({"to": "ada"}), True)
    audit = ("actor", "action", "reason", "affected", "task_ids")
    assert await only_row(connection, "horsies_audit", *audit) == (
        "ada",
        "send",
        "manual send",
        1,
        list(report.task_ids),
    )


async def test_workers_are_notified(ops: Ops, database_url: str) -> None:
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        await ops.send("mail.send")
        assert await notifications() == [("horsies_task_new", "default")]


def test_app_with_the_code_runs_the_task(database_url: str) -> None:
    asyncio.run(_send(database_url, "double", [21]))
    app = make_app(database_url)
    assert drain(app) == 1
    app.close()
    assert fetch_rows(database_url, "SELECT result::text FROM horsies_tasks") == [('{"ok": 42}',)]


@pytest.mark.parametrize(("name", "options"), [("", {}), ("mail.send", {"queue": ""}), ("mail.send", {"delay": -1})])
async def test_invalid_name_queue_or_delay_is_rejected(
    ops: Ops, connection: Connection, name: str, options: dict[str, Any]
) -> None:
    with pytest.raises((HorsiesError, ValueError)):
        await ops.send(name, **options)
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def _send(database_url: str, name: str, args: list[object]) -> None:
    async with open_ops(PostgresConfig(database_url=database_url)) as ops:
        await ops.send(name, args)
