"""Pausing and resuming queues."""

from __future__ import annotations

import pytest

from horsies.errors import ConfigurationError
from horsies.store.database import Database
from horsies_ops.ops import Ops
from tests.support.rows import insert_task
from tests.support.store import Connection, claim, collect_notifications, only_row


async def test_paused_queue_gets_no_claims_until_it_is_resumed(ops: Ops, database: Database, database_url: str) -> None:
    await insert_task(database_url)
    assert (await ops.pause_queue("default", reason="smtp is down")).affected == 1
    assert await claim(database) == []
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        assert (await ops.resume_queue("default")).affected == 1
        assert await notifications() == [("horsies_task_new", "default")]
    assert len(await claim(database)) == 1


async def test_second_pause_keeps_operator_and_reason_of_the_first(ops: Ops, connection: Connection) -> None:
    await ops.pause_queue("mail", reason="smtp is down")
    second = await ops.pause_queue("mail", reason="another reason")
    assert (second.affected, second.skipped_count) == (0, 1)
    paused = ("queue_name", "paused_by", "pause_reason")
    assert await only_row(connection, "horsies_queues", *paused) == ("mail", "ada", "smtp is down")


async def test_pause_and_resume_are_audited(ops: Ops, connection: Connection) -> None:
    await ops.pause_queue("mail", reason="smtp is down")
    await ops.resume_queue("mail")
    rows = await connection.fetch("SELECT action, affected, filter ->> 'queue' AS queue FROM horsies_audit ORDER BY id")
    assert [tuple(row) for row in rows] == [("pause_queue", 1, "mail"), ("resume_queue", 1, "mail")]


async def test_pausing_an_unknown_queue_warns(ops: Ops, database_url: str) -> None:
    await insert_task(database_url, queue_name="mail")
    assert (await ops.pause_queue("mail")).warnings == ()
    assert "no live worker serves mial" in (await ops.pause_queue("mial")).warnings[0]


async def test_invalid_queue_name_is_rejected(ops: Ops) -> None:
    with pytest.raises(ConfigurationError, match="invalid queue name") as refused:
        await ops.pause_queue("")
    assert refused.value.location is None, "a location would point into the library"
