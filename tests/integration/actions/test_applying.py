"""Plans carried out: what moves, what is skipped, and what is written down."""

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
RUNNING_TOO = ActionOptions(include_running=True)
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
async def test_a_waiting_task_ends_without_an_attempt_and_names_its_operator(
    ops: Ops, database_url: str, connection: Connection, action: Action, status: str, code: str, verb: str
) -> None:
    task_id = await insert_task(database_url)
    report = await ops.apply(await ops.plan(action, [task_id], ActionOptions(reason="a flood")))
    row = await _row(connection, task_id)
    assert (row["status"], row["error_code"], row["attempts"]) == (status, code, 0)
    assert row["result"]["err"]["message"] == f"{verb} by ada: a flood"
    assert (report.affected, report.task_ids, report.skipped_count) == (1, (task_id,), 0)
    assert await _audit(connection) == ("ada", "library", action, "a flood", False, 1, 1, 0, 1)


async def test_a_run_that_is_cancelled_has_an_attempt_and_its_owner_is_told_to_kill(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    hold = await claim_and_start(database)
    async with collect_notifications(database_url, "horsies_worker_ping", "horsies_task_done") as heard:
        await ops.cancel([task_id], kill=True)
        (_, done), (_, order) = await heard()
    assert done == str(task_id)
    assert json.loads(order)["kind"] == "kill"
    assert json.loads(order)["target_worker_id"] == str(hold.worker_id)
    row = await _row(connection, task_id)
    assert (row["status"], row["kill_requested"], row["attempts"]) == ("CANCELLED", True, 1)
    attempt = ("outcome", "error_code", "will_retry")
    assert await only_row(connection, "horsies_task_attempts", *attempt) == ("FAILED", "TASK_CANCELLED", False)


async def test_a_claim_goes_back_and_nothing_is_spent(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    before = await _row(connection, task_id)
    await ops.requeue([task_id])
    row = await _row(connection, task_id)
    assert (row["status"], row["claimed"], row["claimed_by_worker_id"]) == ("PENDING", False, None)
    assert (row["retry_count"], row["attempts"], row["enqueued_at"]) == (0, 0, before["enqueued_at"])


async def test_a_delayed_task_is_due_now_and_workers_hear_of_it(
    ops: Ops, database_url: str, connection: Connection
) -> None:
    await insert_pending(connection, count=1, due_in_s=3600)
    (task_id,) = await only_row(connection, "horsies_tasks", "id")
    async with collect_notifications(database_url, "horsies_task_new") as heard:
        await ops.requeue([task_id])
        assert await heard() == [("horsies_task_new", "default")]
    assert await connection.fetchval("SELECT enqueued_at <= now() FROM horsies_tasks")


async def test_a_run_without_a_live_owner_is_moved_at_once_and_the_next_one_is_warned(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    await claim_and_start(database)
    async with (
        collect_notifications(database_url, "horsies_events") as heard,
        asyncio.timeout(4),
    ):  # less than an owner would be given
        await ops.requeue([task_id], include_running=True, reason="stuck")
        assert {json.loads(message)["kind"] for _, message in await heard()} == {"requeue", "overlap_possible"}
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
async def test_what_may_not_start_again_ends_instead_of_going_back(
    ops: Ops, database: Database, database_url: str, connection: Connection, columns: str, status: str, code: str
) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    await connection.execute(f"UPDATE horsies_tasks SET {columns}")
    await ops.requeue([task_id])
    row = await _row(connection, task_id)
    assert (row["status"], row["error_code"], row["result"]["err"]["error_code"]) == (status, code, code)


async def test_a_failed_node_is_left_to_the_outbox(ops: Ops, database_url: str, connection: Connection) -> None:
    run = uuid4()
    await insert(
        database_url,
        "horsies_workflows",
        id=run,
        name="w",
        status="RUNNING",
        on_error="fail",
        root_workflow_id=run,
        sent_at=await connection.fetchval("SELECT now()"),
    )
    task_id = await insert_task(database_url, is_workflow_task=True, workflow_id=run, workflow_task_index=3)
    await ops.fail([task_id])
    outbox = ("task_id", "workflow_id", "task_index")
    assert await only_row(connection, "horsies_workflow_outbox", *outbox) == (task_id, run, 3)


async def test_what_moved_after_the_plan_is_skipped_and_said_so(
    ops: Ops, database: Database, database_url: str, connection: Connection
) -> None:
    moved, stayed = await insert_task(database_url), await insert_task(database_url, queue_name="other")
    plan = await ops.plan(Action.CANCEL, [moved, stayed])
    await claim_one(database)
    report = await ops.apply(plan)
    assert (report.task_ids, report.skipped) == ((stayed,), ((moved, SkipReason.TASK_STATE_MOVED),))
    assert (await _row(connection, moved))["status"] == "CLAIMED"
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 2, 1, 1, 1)


async def test_two_operators_at_once_move_each_task_once(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=1200)
    plans = [await ops.plan(Action.CANCEL, PENDING), await ops.plan(Action.FAIL, PENDING)]
    reports = await asyncio.gather(*map(ops.apply, plans))
    assert sum(report.affected for report in reports) == 1200
    assert sum(report.skipped_count for report in reports) == 1200


async def test_a_claim_of_another_token_is_not_the_one_that_was_shown(
    ops: Ops, database: Database, database_url: str
) -> None:
    task_id = await insert_task(database_url)
    await claim_one(database)
    plan = await ops.plan(Action.CANCEL, [task_id])
    await ops.requeue([task_id])
    await claim_one(database)
    assert (await ops.apply(plan)).affected == 0


async def test_what_arrives_after_the_plan_is_not_included(ops: Ops, database_url: str, connection: Connection) -> None:
    await insert_task(database_url)
    plan = await ops.plan(Action.CANCEL, PENDING)
    late = await insert_task(database_url)
    await ops.apply(plan)
    assert (await _row(connection, late))["status"] == "PENDING"


async def test_many_tasks_go_in_batches_under_one_audit_row(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=1201)
    seen: list[ActionProgress] = []
    report = await ops.apply(await ops.plan(Action.CANCEL, PENDING), progress=seen.append)
    assert [each.done for each in seen] == [500, 1000, 1201]
    assert (report.affected, len(report.task_ids)) == (1201, 1201)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 1201, 1201, 0, 1000)


async def test_an_action_that_is_stopped_ends_between_two_batches(ops: Ops, connection: Connection) -> None:
    await insert_pending(connection, count=600)
    stop = asyncio.Event()
    report = await ops.apply(await ops.plan(Action.CANCEL, PENDING), progress=lambda _: stop.set(), stop=stop)
    assert (report.affected, report.was_stopped) == (500, True)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 600, 500, 0, 500)


async def test_an_action_in_which_everything_is_refused_is_on_record_too(
    ops: Ops, database_url: str, connection: Connection
) -> None:
    await insert_task(database_url, status="COMPLETED")
    report = await ops.cancel(TaskFilter(statuses=["COMPLETED"]))
    assert (report.affected, report.skipped_count) == (0, 1)
    assert await _audit(connection) == ("ada", "library", "cancel", None, False, 1, 0, 1, 0)


async def test_a_dry_run_is_on_record_and_moves_nothing(ops: Ops, database_url: str, connection: Connection) -> None:
    task_id = await insert_task(database_url)
    report = await ops.cancel([task_id], dry_run=True)
    assert (report.matched, report.affected, report.is_dry_run) == (1, 0, True)
    assert (await _row(connection, task_id))["status"] == "PENDING"
    assert await _audit(connection) == ("ada", "library", "cancel", None, True, 1, 0, 0, 0)


async def test_the_audit_keeps_the_filter_with_its_bounds(ops: Ops, database_url: str, connection: Connection) -> None:
    task_id = await insert_task(database_url)
    await ops.cancel(PENDING)
    (kept,) = await only_row(connection, "horsies_audit", "filter")
    assert json.loads(kept)["last_id"] == str(task_id)
    assert json.loads(kept)["filter"][0]["statuses"] == ["PENDING"]


async def test_viewers_are_told_what_moved(ops: Ops, database_url: str) -> None:
    task_id = await insert_task(database_url, queue_name="mail")
    async with collect_notifications(database_url, "horsies_events") as heard:
        await ops.expire([task_id])
        ((_, message),) = await heard()
    moved = {"queue": "mail", "from": "PENDING", "to": "EXPIRED", "count": 1, "ids": [str(task_id)]}
    assert json.loads(message) == {"kind": "expire by hand", **moved}


async def test_a_read_only_connection_plans_and_refuses_to_act(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with open_ops(PostgresConfig(database_url=database_url), read_only=True) as ops:
        plan = await ops.plan(Action.CANCEL, [task_id])
        with pytest.raises(Refused, match="read-only"):
            await ops.apply(plan)


async def test_a_change_may_take_longer_than_a_read_of_the_same_tools(
    database_url: str, connection: Connection
) -> None:
    task_id = await insert_task(database_url)
    async with open_ops(PostgresConfig(database_url=database_url), read_timeout_s=0.2) as ops:
        plan = await ops.plan(Action.CANCEL, [task_id])
        async with connection.transaction():
            await connection.execute("LOCK horsies_tasks IN ACCESS EXCLUSIVE MODE")
            applying = asyncio.create_task(ops.apply(plan))
            with pytest.raises(HorsiesError):
                await ops.list_tasks()
        assert (await applying).affected == 1


async def test_a_running_task_whose_owner_does_not_answer_is_moved_and_said_to_overlap(
    ops: Ops, database_url: str, connection: Connection
) -> None:
    gone = await insert_listening_worker(database_url, state="lost", silent_s=3_600)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=gone, silent_s=3_600)
    report = await ops.apply(await ops.plan(Action.REQUEUE, [task_id], RUNNING_TOO))
    row = await _row(connection, task_id)
    assert (report.affected, row["status"], row["overlap_possible"]) == (1, "PENDING", True)
    assert "1 requeued although their workers did not stop them in time" in report.warnings[-1]
