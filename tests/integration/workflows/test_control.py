"""Pause, resume, cancel, expiry and retry of runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from horsies.model.workflow.plan import OnError
from horsies.store.database import Database
from horsies.workflows import control
from horsies.workflows.control import ControlRefusal
from tests.support.store import Connection, until_lock_waiters
from tests.support.workflows import (
    FakeDefinitions,
    WorkflowDriver,
    node,
    node_row,
    node_statuses,
    plan,
    run_row,
    sub_node,
)


async def test_pause_withdraws_pending_tasks(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1), node(2, 0, 1))
    assert await control.pause(driver.database, workflow_id) is True
    assert await node_statuses(connection, workflow_id) == ["READY", "READY", "PENDING"]
    assert await _task_statuses(connection) == ["CANCELLED", "CANCELLED"]
    assert (await run_row(connection, workflow_id))["status"] == "PAUSED"
    assert await driver.claim_and_start() == []


async def test_running_task_finishes_during_a_pause(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0))
    running = await driver.claim_and_start()
    await control.pause(driver.database, workflow_id)
    await driver.finish(running)
    await driver.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "PENDING"]
    assert await control.resume(driver.database, workflow_id) is True
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"
    assert driver.started == ["n0", "n1"]


async def test_task_retry_during_a_pause_waits_for_resume(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0, max_retries=3))
    (running,) = await driver.claim_and_start()
    await control.pause(driver.database, workflow_id)
    await driver.retry(running)
    await driver.outbox.process()
    assert await node_statuses(connection, workflow_id) == ["READY"]
    assert (await node_row(connection, workflow_id, 0))["task_id"] is None
    await control.resume(driver.database, workflow_id)
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_running_task_can_retry_after_resume(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0, max_retries=3))
    (running,) = await driver.claim_and_start()
    await control.pause(driver.database, workflow_id)
    await control.resume(driver.database, workflow_id)
    await driver.retry(running)
    assert await _task_statuses(connection) == ["PENDING"]
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_pause_expires_tasks_past_their_good_until(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0, good_until=datetime.now(UTC) - timedelta(seconds=1)), node(1, 0))
    await control.pause(driver.database, workflow_id)
    assert await _task_statuses(connection) == ["EXPIRED"]
    await control.resume(driver.database, workflow_id)
    assert await node_statuses(connection, workflow_id) == ["FAILED", "SKIPPED"]
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "TASK_EXPIRED"


async def test_failure_during_a_pause_does_not_pause_again(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1), on_error=OnError.PAUSE)
    running = await driver.claim_and_start()
    await control.pause(driver.database, workflow_id)
    await driver.finish(running, lambda name: "err" if name == "n0" else "ok")
    await control.resume(driver.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("FAILED", "BROKEN")


async def test_resume_keeps_the_error_of_a_failed_node(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2), on_error=OnError.PAUSE)
    rows = await driver.claim_and_start()
    await driver.finish([row for row in rows if row.task_name == "n0"], lambda _: "err")
    await driver.outbox.process()
    await control.resume(driver.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"], run["paused_at"]) == ("RUNNING", "BROKEN", None)
    assert await node_statuses(connection, workflow_id) == ["FAILED", "SKIPPED", "RUNNING"]


async def test_operations_in_the_wrong_state_are_refused(driver: WorkflowDriver, database: Database) -> None:
    workflow_id = await driver.start_run(node(0))
    assert await control.resume(database, workflow_id) is False
    assert await control.retry_failed(database, workflow_id) is ControlRefusal.NOT_TERMINAL
    await driver.run()
    assert await control.pause(database, workflow_id) is False
    assert await control.cancel(database, workflow_id) is False
    assert await control.retry_failed(database, workflow_id) == 0
    unknown = uuid4()
    answers = [await control.pause(database, unknown), await control.resume(database, unknown)]
    answers += [await control.cancel(database, unknown), await control.retry_failed(database, unknown)]
    assert answers == [ControlRefusal.NOT_FOUND] * 4


async def test_cancel_lets_running_tasks_finish(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2))
    rows = await driver.claim_and_start(limit=1)
    await control.cancel(driver.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("CANCELLED", "WORKFLOW_CANCELLED")
    assert await node_statuses(connection, workflow_id) == ["RUNNING", "SKIPPED", "SKIPPED"]
    await driver.finish(rows)
    await driver.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "SKIPPED", "SKIPPED"]
    assert (await node_row(connection, workflow_id, 2))["completed_at"] is None
    assert driver.started == ["n0"]


async def test_cancelled_run_does_not_retry_tasks(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0, max_retries=3))
    (running,) = await driver.claim_and_start()
    await control.cancel(driver.database, workflow_id)
    await driver.retry(running)
    await driver.outbox.process()
    assert (await node_statuses(connection, workflow_id), await _task_statuses(connection)) == (
        ["SKIPPED"],
        ["CANCELLED"],
    )


async def test_retry_restarts_a_task_cancelled_during_the_retry(
    driver: WorkflowDriver, database: Database, connection: Connection
) -> None:
    workflow_id = await driver.start_run(node(0, max_retries=3), node(1, 0))
    (running,) = await driver.claim_and_start()
    await control.cancel(database, workflow_id)
    # The task becomes CANCELLED after the retry has read the nodes, but before it removes the cancel marks.
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_tasks WHERE id = $1 FOR UPDATE", running.id)
        retrying = asyncio.create_task(control.retry_failed(database, workflow_id))
        await until_lock_waiters(connection)
        await connection.execute(
            "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), claimed = false WHERE id = $1",
            running.id,
        )
    assert await retrying == 1
    await driver.run()
    assert (await node_statuses(connection, workflow_id), driver.started) == (
        ["COMPLETED", "COMPLETED"],
        ["n0", "n0", "n1"],
    )
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_pause_withdraws_claimed_tasks(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0))
    claimed = await driver.claim_only()
    await control.pause(driver.database, workflow_id)
    assert (await node_statuses(connection, workflow_id), await _task_statuses(connection)) == (
        ["READY", "PENDING"],
        ["CANCELLED"],
    )
    assert await driver.start_tasks(claimed) == []
    await control.resume(driver.database, workflow_id)
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_cancel_withdraws_claimed_tasks(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0))
    claimed = await driver.claim_only()
    await control.cancel(driver.database, workflow_id)
    assert (await node_statuses(connection, workflow_id), await _task_statuses(connection)) == (
        ["SKIPPED"] * 2,
        ["CANCELLED"],
    )
    assert await driver.start_tasks(claimed) == []


async def test_cancel_with_kill_cancels_running_tasks(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await driver.claim_and_start()
    await control.cancel(driver.database, workflow_id, kill=True)
    task = await connection.fetchrow("SELECT status, kill_requested, attempts FROM horsies_tasks")
    assert tuple(task or ()) == ("CANCELLED", True, 1)
    assert await connection.fetchval("SELECT error_code FROM horsies_task_attempts") == "TASK_CANCELLED"
    assert await node_statuses(connection, workflow_id) == ["SKIPPED"]


async def test_run_paused_for_too_long_expires(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await control.pause(driver.database, workflow_id)
    assert await control.expire_paused(driver.database, longer_than_s=60) == []
    assert await control.expire_paused(driver.database, longer_than_s=0) == [workflow_id]
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("EXPIRED", "WORKFLOW_EXPIRED")
    assert await node_statuses(connection, workflow_id) == ["SKIPPED"]


async def test_retry_failed_runs_failed_nodes_with_new_task_ids(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1), node(2, 0, 1))
    await driver.run(lambda name: "err" if name == "n1" else "ok")
    before = await node_row(connection, workflow_id, 1)
    assert await control.retry_failed(driver.database, workflow_id) == 2
    await driver.run()
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["generation"], run["error"]) == ("COMPLETED", 2, None)
    assert driver.started == ["n0", "n1", "n1", "n2"]
    assert (await node_row(connection, workflow_id, 1))["task_id"] != before["task_id"]
    evidence = await connection.fetchval("SELECT evidence FROM horsies_events WHERE kind = 'workflow_retried'")
    assert str(before["task_id"]) in evidence


async def test_retry_clears_only_a_good_until_in_the_past(driver: WorkflowDriver, connection: Connection) -> None:
    now = datetime.now(UTC)
    expiring = node(0, good_until=now + timedelta(hours=1))
    workflow_id = await driver.start_run(expiring, node(1, good_until=now + timedelta(hours=1)), node(2, 0))
    await driver.run(lambda _: "err")
    await connection.execute("UPDATE horsies_workflow_tasks SET good_until = now() WHERE task_index = 0")
    assert await control.retry_failed(driver.database, workflow_id) == 3
    rows = await connection.fetch("SELECT good_until FROM horsies_tasks WHERE status = 'PENDING' ORDER BY task_name")
    assert [row["good_until"] for row in rows] == [None, now + timedelta(hours=1)]
    await driver.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED"] * 3


async def test_cancelled_run_can_be_retried(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0, max_retries=1), node(1, 0))
    (running,) = await driver.claim_and_start()
    await control.cancel(driver.database, workflow_id)
    assert await control.retry_failed(driver.database, workflow_id) == 1
    await driver.retry(running)  # the retry removed the cancel mark
    await driver.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_sub_workflows_are_paused_resumed_and_cancelled_with_the_root(
    database: Database, connection: Connection
) -> None:
    driver = WorkflowDriver(database, known=FakeDefinitions({"sub": plan(node(0), node(1, 0))}))
    root = await driver.start_run(sub_node(0, "sub"), node(1))
    await driver.outbox.process()
    sub_workflow_id = (await node_row(connection, root, 0))["sub_workflow_id"]
    await control.pause(database, root)
    assert await _run_statuses(connection) == ["PAUSED", "PAUSED"]
    assert await driver.claim_and_start() == []
    await control.resume(database, root)
    assert await _run_statuses(connection) == ["RUNNING", "RUNNING"]
    await control.cancel(database, root)
    assert await _run_statuses(connection) == ["CANCELLED", "CANCELLED"]
    assert await node_statuses(connection, sub_workflow_id) == ["SKIPPED", "SKIPPED"]
    await driver.run()
    assert driver.started == []


async def test_retry_failed_includes_sub_workflows(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(
        database, known=FakeDefinitions({"sub": plan(node(0, name="good"), node(1, 0, name="bad"))})
    )
    root = await driver.start_run(sub_node(0, "sub"), node(1, 0))
    await driver.run(lambda name: "err" if name == "bad" else "ok")
    before = await node_row(connection, root, 0)
    assert (before["status"], (await run_row(connection, root))["status"]) == ("FAILED", "FAILED")
    assert await control.retry_failed(database, before["sub_workflow_id"]) is ControlRefusal.NOT_ROOT
    assert await control.retry_failed(database, root) == 3
    await driver.run()
    after = await node_row(connection, root, 0)
    assert (after["sub_workflow_id"], after["status"]) == (before["sub_workflow_id"], "COMPLETED")
    assert (await run_row(connection, root))["status"] == "COMPLETED"
    assert driver.started == ["good", "bad", "bad", "n1"]


async def _task_statuses(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_tasks ORDER BY id")]


async def _run_statuses(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_workflows ORDER BY id")]
