"""Retrying finished tasks, and undoing a retry."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies.model.operator_actions import SkipReason
from horsies.store.database import Database
from horsies_ops.ops import Ops
from tests.support.rows import insert_task
from tests.support.store import Connection, claim_one, collect_notifications

SENT = {
    "task_name": "mail.send",
    "queue_name": "mail",
    "priority": 7,
    "args": [1],
    "kwargs": {"to": "ada"},
    "max_retries": 3,
    "task_options": {"timeout_ms": 500},
    "flags": {"vip": True},
}


@pytest.mark.parametrize("status", ["FAILED", "CANCELLED", "EXPIRED"])
async def test_retry_creates_new_task_with_same_arguments_and_options(
    ops: Ops, database_url: str, connection: Connection, status: str
) -> None:
    old = await insert_task(
        database_url,
        status=status,
        good_until=datetime.now(UTC),
        idempotency_key="k",
        command_sha="c",
        attempts=4,
        **SENT,
    )
    before = await connection.fetch("SELECT *, xmin FROM horsies_tasks")
    report = await ops.retry([old])
    assert (report.affected, report.task_ids, len(report.new_ids)) == (1, (old,), 1)
    assert await connection.fetch("SELECT *, xmin FROM horsies_tasks WHERE id = $1", old) == before
    same = " AND ".join(f"new.{name} = old.{name}" for name in SENT)
    row = await connection.fetchrow(
        f"""SELECT ({same}) AS is_same, new.status, new.good_until, new.idempotency_key, new.command_sha, new.attempts
              FROM horsies_tasks AS new JOIN horsies_tasks AS old ON old.id = new.retry_of
             WHERE new.id = $1""",
        report.new_ids[0],
    )
    assert row is not None
    assert tuple(row) == (True, "PENDING", None, None, None, 0)


@pytest.mark.parametrize("column", [{"kwargs": []}, {"queue_name": "x" * 300}])
async def test_malformed_task_is_skipped_and_not_the_others(
    ops: Ops, database_url: str, column: dict[str, object]
) -> None:
    """The database accepts no new task like it, so one would fail the whole batch."""
    good = await insert_task(database_url, status="FAILED")
    malformed = await insert_task(database_url, status="FAILED", **column)
    report = await ops.retry([good, malformed])
    assert (report.task_ids, report.skipped) == ((good,), ((malformed, SkipReason.TASK_IS_MALFORMED),))


async def test_workers_are_notified_of_a_retry(ops: Ops, database_url: str) -> None:
    old = await insert_task(database_url, status="FAILED", queue_name="mail")
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        await ops.retry([old])
        assert await notifications() == [("horsies_task_new", "mail")]


async def test_undo_retry_cancels_only_unclaimed_tasks(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    old = [await insert_task(database_url, status="FAILED") for _ in range(2)]
    retried = await ops.retry(old)
    claimed = (await claim_one(database)).task_id
    (waiting,) = set(retried.new_ids) - {claimed}
    undone = await ops.undo_retry(retried)
    assert (undone.task_ids, undone.skipped) == ((waiting,), ((claimed, SkipReason.TASK_STATE_MOVED),))
    states = await connection.fetch("SELECT status FROM horsies_tasks WHERE retry_of IS NOT NULL ORDER BY status")
    assert [row["status"] for row in states] == ["CANCELLED", "CLAIMED"]


async def test_undo_retry_rejects_other_actions(ops: Ops, database_url: str) -> None:
    report = await ops.cancel([await insert_task(database_url)])
    with pytest.raises(ValueError, match="only a retry"):
        await ops.undo_retry(report)
