"""Applying plans: changed and skipped tasks, notifications and the audit log."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from horsies.errors import HorsiesError, Refused
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.settings import PostgresConfig
from horsies.store.database import Database
from horsies_ops.actions.report import ActionProgress
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.filters import TaskFilter
from tests.support.rows import insert, insert_listening_worker, insert_owned_task, insert_task
from tests.support.store import Connection, claim_and_start, claim_one, collect_notifications, insert_pending, only_row

PENDING = TaskFilter(statuses=["PENDING"])
INCLUDE_RUNNING = ActionOptions(include_running=True)
AUDIT = ("actor", "via", "action", "reason", "dry_run", "matched", "affected", "skipped", "cardinality(task_ids)")


async def _row(connection: Connection, task_id: UUID) -> dict[str, Any]:
    row = dict(await connection.fetchrow("SELECT * FROM horsies_tasks WHERE id = $1", task_id) or {})
    return row | {"result": json.loads(row["result"] or "null")}


async def _audit(connection: Connection) -> tuple[Any, ...]:
    return await only_row(connection, "horsies_audit", *AUDIT)


@pytest.mark.parametrize(
    ("action", "status", "code", "verb"),
    [
        (Action.FAIL, "FAILED", "OPERATOR_FAILED", "failed"),
        (Action.CANCEL, "CANCELLED", "TASK_CANCELLED", "cancelled"),
        (Action.EXPIRE, "EXPIRED", "TASK_EXPIRED", "expired"),
    ],
)
async def test_pending_task_finishes_without_attempt_and_names_operator(
    ops: Ops, database_url: str, connection: Connection, action: Action, status: str, code: str, verb: str
) -> None:
    task_id = await insert_task(database_url)
    report = await ops.apply(await ops.plan(action, [task_id], ActionOptions(reason="a flood")))
    row = await _row(connection, task_id)
    assert (row["status"], row["error_code"], row["attempts"]) == (status, code, 0)
    assert row["result"]["err"]["message"] == f"{verb} by ada: a flood"
    assert (report.affected, report.task_ids, report.skipped_count) == (1, (task_id,), 0)
    assert await _audit(connection) == ("ada", "library", action, "a flood", False, 1, 1, 0, 1)


async def test_cancelling_running_task_stores_attempt_and_notifies_owner_to_kill(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    claim = await claim_and_start(database)
    async with collect_notifications(database_url, "horsies_worker_ping", "horsies_task_done") as notifications:
        await ops.cancel([task_id], kill=True)
        (_, done), (_, order) = await notifications()
    assert done == str(task_id)
    assert json.loads(order)["kind"] == "kill"
    assert json.loads(order)["target_worker_id"] == str(claim.worker_id)
    row = await _row(connection, task_id)
    assert (row["status"], row["kill_requested"], row["attempts"]) == ("CANCELLED", True, 1)
    attempt = ("outcome", "error_code", "will_retry")
    assert await only_row(connection, "horsies_task_attempts", *attempt) == ("FAILED", "TASK_CANCELLED", False)


async def test_requeued_claim_keeps_retries_and_attempts(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    before = await _row(connection, task_id)
    await ops.requeue([task_id])
    row = await _row(connection, task_id)
    assert (row["status"], row["claimed"], row["claimed_by_worker_id"]) == ("PENDING", False, None)
    assert (row["retry_count"], row["attempts"], row["enqueued_at"]) == (0, 0, before["enqueued_at"])


async def test_requeued_delayed_task_is_due_now_and_workers_are_notified(
    ops: Ops, database_url: str, connection: Connection
) -> None:
    await insert_pending(connection, count=1, due_in_s=3600)
    (task_id,) = await only_row(connection, "horsies_tasks", "id")
    async with collect_notifications(database_url, "horsies_task_new") as notifications:
        await ops.requeue([task_id])
        assert await notifications() == [("horsies_task_new", "default")]
    assert await connection.fetchval("SELECT enqueued_at <= now() FROM horsies_tasks")


async def test_running_task_without_live_owner_is_requeued_immediately_with_overlap(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    await claim_and_start(database)
    async with (
        collect_notifications(database_url, "horsies_events") as notifications,
        asyncio.timeout(4),
    ):  # less than the time that a live owner would get
        await ops.requeue([task_id], include_running=True, reason="stuck")
        assert {json.loads(message)["kind"] for _, message in await notifications()} == {"requeue", "overlap_possible"}
    row = await _row(connection, task_id)
    assert (row["status"], row["overlap_possible"], row["retry_count"]) == ("PENDING", True, 0)
    assert (row["kill_requested"], row["failed_reason"]) == (False, "requeued by ada: stuck")
    attempt = ("error_code", "will_retry", "error_message")
    expected = ("OPERATOR_REQUEUED", True, "requeued by ada: stuck")
    assert await only_row(connection, "horsies_task_attempts", *attempt) == expected
    assert await only_row(connection, "horsies_events", "kind", "task_id") == ("overlap_possible", task_id)


@pytest.mark.parametrize(
    ("columns", "status", "code"),
    [
        ("good_until = now()", "EXPIRED", "TASK_EXPIRED"),
        ("no_restart = 'paused'", "CANCELLED", "TASK_CANCELLED"),
    ],
)
async def test_task_that_may_not_restart_finishes_instead_of_requeue(
    ops: Ops, database: Database, database_url: str, connection: Connection, columns: str, status: str, code: str
) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    await connection.execute(f"UPDATE horsies_tasks SET {columns}")
    await ops.requeue([task_id])
    row = await _row(connection, task_id)
    assert (row["status"], row["error_code"], row["result"]["err"]["error_code"]) == (status, code, code)


async def test_failed_workflow_task_is_added_to_outbox(ops: Ops, database_url: str, connection: Connection) -> None:
    run_id = uuid4()
    await insert(
        database_url,
        "horsies_workflows",
        id=run_id,
        name="w",
        status="RUNNING",
        on_error="fail",
        root_workflow_id=run_id,
        sent_at=await connection.fetchval("SELECT now()"),
    )
    task_id = await insert_task(database_url, is_workflow_task=True, workflow_id=run_id, workflow_task_index=3)
    await ops.fail([task_id])
    outbox = ("task_id", "workflow_id", "task_index")
    assert await only_row(connection, "horsies_workflow_outbox", *outbox) == (task_id, run_id, 3)


async def test_task_changed_after_the_plan_is_skipped_and_reported(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    changed, unchanged = await insert_task(database_url), await insert_task(database_url, queue_name="other")
    plan = await ops.plan(Action.CANCEL, [changed, unchanged])
    await claim_one(database)
    report = await ops.apply(plan)
    assert (report.task_ids, report.skipped) == ((unchanged,), ((changed, SkipReason.TASK_STATE_MOVED),))
    assert (await _row(connection, changed))["status"] == "CLAIMED"
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 2, 1, 1, 1)


async def test_two_concurrent_operators_change_each_task_once(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=1200)
    plans = [await ops.plan(Action.CANCEL, PENDING), await ops.plan(Action.FAIL, PENDING)]
    reports = await asyncio.gather(*map(ops.apply, plans))
    assert sum(report.affected for report in reports) == 1200
    assert sum(report.skipped_count for report in reports) == 1200


async def test_task_with_another_claim_token_is_not_changed(ops: Ops, database: Database, database_url: str) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    plan = await ops.plan(Action.CANCEL, [task_id])
    await ops.requeue([task_id])
    await claim_one(database)
    assert (await ops.apply(plan)).affected == 0


async def test_task_sent_after_the_plan_is_not_included(ops: Ops, database_url: str, connection: Connection) -> None:
    await insert_task(database_url)
    plan = await ops.plan(Action.CANCEL, PENDING)
    late = await insert_task(database_url)
    await ops.apply(plan)
    assert (await _row(connection, late))["status"] == "PENDING"


async def test_many_tasks_are_changed_in_batches_with_one_audit_entry(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=1201)
    progress: list[ActionProgress] = []
    report = await ops.apply(await ops.plan(Action.CANCEL, PENDING), progress=progress.append)
    assert [step.done for step in progress] == [500, 1000, 1201]
    assert (report.affected, len(report.task_ids)) == (1201, 1201)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 1201, 1201, 0, 1000)


async def test_stopped_action_ends_after_the_current_batch(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=600)
    stop = asyncio.Event()
    report = await ops.apply(await ops.plan(Action.CANCEL, PENDING), progress=lambda _: stop.set(), stop=stop)
    assert (report.affected, report.was_stopped) == (500, True)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 600, 500, 0, 500)


async def test_action_that_refuses_every_task_is_audited(ops: Ops, database_url: str, connection: Connection) -> None:
    await insert_task(database_url, status="COMPLETED")
    report = await ops.cancel(TaskFilter(statuses=["COMPLETED"]))
    assert (report.affected, report.skipped_count) == (0, 1)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 1, 0, 1, 0)


async def test_dry_run_is_audited_and_changes_nothing(ops: Ops, database_url: str, connection: Connection) -> None:
    task_id = await insert_task(database_url)
    report = await ops.cancel([task_id], dry_run=True)
    assert (report.matched, report.affected, report.is_dry_run) == (1, 0, True)
    assert (await _row(connection, task_id))["status"] == "PENDING"
    assert await _audit(connection) == ("ada", "library", "cancel", None, True, 1, 0, 0, 0)


async def test_audit_entry_has_the_filter_and_last_id(ops: Ops, database_url: str, connection: Connection) -> None:
    task_id = await insert_task(database_url)
    await ops.cancel(PENDING)
    (stored,) = await only_row(connection, "horsies_audit", "filter")
    assert json.loads(stored)["last_id"] == str(task_id)
    assert json.loads(stored)["filter"][0]["statuses"] == ["PENDING"]


async def test_status_change_is_notified(ops: Ops, database_url: str) -> None:
    task_id = await insert_task(database_url, queue_name="mail")
    async with collect_notifications(database_url, "horsies_events") as notifications:
        await ops.expire([task_id])
        ((_, message),) = await notifications()
    change = {"queue": "mail", "from": "PENDING", "to": "EXPIRED", "count": 1, "ids": [str(task_id)]}
    assert json.loads(message) == {"kind": "operator expire", **change}


async def test_read_only_connection_plans_but_refuses_to_apply(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with open_ops(PostgresConfig(database_url=database_url), read_only=True) as ops:
        plan = await ops.plan(Action.CANCEL, [task_id])
        with pytest.raises(Refused, match="read-only"):
            await ops.apply(plan)


async def test_read_timeout_does_not_apply_to_changes(database_url: str, connection: Connection) -> None:
    task_id = await insert_task(database_url)
    async with open_ops(PostgresConfig(database_url=database_url), read_timeout_s=0.2) as ops:
        plan = await ops.plan(Action.CANCEL, [task_id])
        async with connection.transaction():
            await connection.execute("LOCK horsies_tasks IN ACCESS EXCLUSIVE MODE")
            applying = asyncio.create_task(ops.apply(plan))
            with pytest.raises(HorsiesError):
                await ops.list_tasks()
        assert (await applying).affected == 1


async def test_requeue_warns_of_overlap_if_the_owner_does_not_answer(
    ops: Ops, database_url: str, connection: Connection
) -> None:
    lost_worker = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=lost_worker, silent_s=3_600)
    report = await ops.apply(await ops.plan(Action.REQUEUE, [task_id], INCLUDE_RUNNING))
    row = await _row(connection, task_id)
    assert (report.affected, row["status"], row["overlap_possible"]) == (1, "PENDING", True)
    assert "1 requeued although their workers did not stop them in time" in report.warnings[-1]
