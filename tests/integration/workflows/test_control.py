"""Pause, resume, cancel, expiry, and beginning again what failed."""

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


async def test_pause_takes_back_what_has_not_begun(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1), node(2, 0, 1))
    assert await control.pause(bench.database, workflow_id) is True
    assert await node_statuses(connection, workflow_id) == ["READY", "READY", "PENDING"]
    assert await _tasks(connection) == ["CANCELLED", "CANCELLED"]
    assert (await run_row(connection, workflow_id))["status"] == "PAUSED"
    assert await bench.claim_and_start() == []


async def test_a_task_that_runs_while_its_run_is_paused_ends_and_nothing_follows(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0))
    running = await bench.claim_and_start()
    await control.pause(bench.database, workflow_id)
    await bench.finish(running)
    await bench.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "PENDING"]
    assert await control.resume(bench.database, workflow_id) is True
    await bench.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"
    assert bench.started == ["n0", "n1"]


async def test_a_retry_of_a_paused_run_waits_for_the_resume(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0, max_retries=3))
    (running,) = await bench.claim_and_start()
    await control.pause(bench.database, workflow_id)
    await bench.retry(running)
    await bench.outbox.process()
    assert await node_statuses(connection, workflow_id) == ["READY"]
    assert (await node_row(connection, workflow_id, 0))["task_id"] is None
    await control.resume(bench.database, workflow_id)
    await bench.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_a_resume_lets_what_still_runs_start_again(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0, max_retries=3))
    (running,) = await bench.claim_and_start()
    await control.pause(bench.database, workflow_id)
    await control.resume(bench.database, workflow_id)
    await bench.retry(running)
    assert await _tasks(connection) == ["PENDING"]
    await bench.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_a_task_past_its_good_until_expires_in_a_pause(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0, good_until=datetime.now(UTC) - timedelta(seconds=1)), node(1, 0))
    await control.pause(bench.database, workflow_id)
    assert await _tasks(connection) == ["EXPIRED"]
    await control.resume(bench.database, workflow_id)
    assert await node_statuses(connection, workflow_id) == ["FAILED", "SKIPPED"]
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "TASK_EXPIRED"


async def test_a_failure_during_a_pause_does_not_pause_the_run_again(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1), on_error=OnError.PAUSE)
    running = await bench.claim_and_start()
    await control.pause(bench.database, workflow_id)
    await bench.finish(running, lambda name: "err" if name == "n0" else "ok")
    await control.resume(bench.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("FAILED", "BROKEN")


async def test_a_resume_keeps_the_error_while_a_node_has_failed(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0), node(2), on_error=OnError.PAUSE)
    rows = await bench.claim_and_start()
    await bench.finish([row for row in rows if row.task_name == "n0"], lambda _: "err")
    await bench.outbox.process()
    await control.resume(bench.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"], run["paused_at"]) == ("RUNNING", "BROKEN", None)
    assert await node_statuses(connection, workflow_id) == ["FAILED", "SKIPPED", "RUNNING"]


async def test_answers_to_what_cannot_be_done(bench: WorkflowDriver, database: Database) -> None:
    workflow_id = await bench.start_run(node(0))
    assert await control.resume(database, workflow_id) is False
    assert await control.retry_failed(database, workflow_id) is ControlRefusal.NOT_TERMINAL
    await bench.run()
    assert await control.pause(database, workflow_id) is False
    assert await control.cancel(database, workflow_id) is False
    assert await control.retry_failed(database, workflow_id) == 0
    nobody = uuid4()
    answers = [await control.pause(database, nobody), await control.resume(database, nobody)]
    answers += [await control.cancel(database, nobody), await control.retry_failed(database, nobody)]
    assert answers == [ControlRefusal.NOT_FOUND] * 4


async def test_cancel_ends_the_run_and_lets_what_runs_end(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0), node(2))
    rows = await bench.claim_and_start(limit=1)
    await control.cancel(bench.database, workflow_id)
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("CANCELLED", "WORKFLOW_CANCELLED")
    assert await node_statuses(connection, workflow_id) == ["RUNNING", "SKIPPED", "SKIPPED"]
    await bench.finish(rows)
    await bench.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "SKIPPED", "SKIPPED"]
    assert bench.started == ["n0"]


async def test_a_cancelled_run_starts_nothing_again(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0, max_retries=3))
    (running,) = await bench.claim_and_start()
    await control.cancel(bench.database, workflow_id)
    await bench.retry(running)
    await bench.outbox.process()
    assert (await node_statuses(connection, workflow_id), await _tasks(connection)) == (["SKIPPED"], ["CANCELLED"])


async def test_a_retry_begins_again_what_the_cancel_stops_only_after_it(
    bench: WorkflowDriver, database: Database, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0, max_retries=3), node(1, 0))
    (running,) = await bench.claim_and_start()
    await control.cancel(database, workflow_id)
    # The crash is stored when the retry has looked at the nodes, and before it takes the marks of the cancel away.
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_workflow_tasks WHERE task_index = 0 FOR UPDATE")
        retrying = asyncio.create_task(control.retry_failed(database, workflow_id))
        await until_lock_waiters(connection)
        await connection.execute(
            "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), claimed = false WHERE id = $1",
            running.id,
        )
    assert await retrying == 1
    await bench.run()
    assert (await node_statuses(connection, workflow_id), bench.started) == (
        ["COMPLETED", "COMPLETED"],
        ["n0", "n0", "n1"],
    )
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_pause_takes_back_what_was_claimed_and_not_begun(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0))
    held = await bench.claim_only()
    await control.pause(bench.database, workflow_id)
    assert (await node_statuses(connection, workflow_id), await _tasks(connection)) == (
        ["READY", "PENDING"],
        ["CANCELLED"],
    )
    assert await bench.start_tasks(held) == []
    await control.resume(bench.database, workflow_id)
    await bench.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_cancel_takes_back_what_was_claimed_and_not_begun(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0))
    held = await bench.claim_only()
    await control.cancel(bench.database, workflow_id)
    assert (await node_statuses(connection, workflow_id), await _tasks(connection)) == (["SKIPPED"] * 2, ["CANCELLED"])
    assert await bench.start_tasks(held) == []


async def test_cancel_with_kill_takes_back_what_runs(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await bench.claim_and_start()
    await control.cancel(bench.database, workflow_id, kill=True)
    task = await connection.fetchrow("SELECT status, kill_requested, attempts FROM horsies_tasks")
    assert tuple(task or ()) == ("CANCELLED", True, 1)
    assert await connection.fetchval("SELECT error_code FROM horsies_task_attempts") == "TASK_CANCELLED"
    assert await node_statuses(connection, workflow_id) == ["SKIPPED"]


async def test_a_run_that_is_paused_for_too_long_expires(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await control.pause(bench.database, workflow_id)
    assert await control.expire_paused(bench.database, longer_than_s=60) == []
    assert await control.expire_paused(bench.database, longer_than_s=0) == [workflow_id]
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["error"]["error_code"]) == ("EXPIRED", "WORKFLOW_EXPIRED")
    assert await node_statuses(connection, workflow_id) == ["SKIPPED"]


async def test_retry_failed_runs_only_what_failed_and_under_new_ids(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1), node(2, 0, 1))
    await bench.run(lambda name: "err" if name == "n1" else "ok")
    before = await node_row(connection, workflow_id, 1)
    assert await control.retry_failed(bench.database, workflow_id) == 2
    await bench.run()
    run = await run_row(connection, workflow_id)
    assert (run["status"], run["generation"], run["error"]) == ("COMPLETED", 2, None)
    assert bench.started == ["n0", "n1", "n1", "n2"]
    assert (await node_row(connection, workflow_id, 1))["task_id"] != before["task_id"]
    told = await connection.fetchval("SELECT evidence FROM horsies_events WHERE kind = 'workflow_retried'")
    assert str(before["task_id"]) in told


async def test_a_retry_runs_a_node_whose_time_has_passed_and_keeps_a_time_to_come(
    bench: WorkflowDriver, connection: Connection
) -> None:
    now = datetime.now(UTC)
    late = node(0, good_until=now + timedelta(hours=1))
    workflow_id = await bench.start_run(late, node(1, good_until=now + timedelta(hours=1)), node(2, 0))
    await bench.run(lambda _: "err")
    await connection.execute("UPDATE horsies_workflow_tasks SET good_until = now() WHERE task_index = 0")
    assert await control.retry_failed(bench.database, workflow_id) == 3
    until = await connection.fetch("SELECT good_until FROM horsies_tasks WHERE status = 'PENDING' ORDER BY task_name")
    assert [row["good_until"] for row in until] == [None, now + timedelta(hours=1)]
    await bench.run()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED"] * 3


async def test_a_cancelled_run_can_be_retried(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0, max_retries=1), node(1, 0))
    (running,) = await bench.claim_and_start()
    await control.cancel(bench.database, workflow_id)
    assert await control.retry_failed(bench.database, workflow_id) == 1
    await bench.retry(running)  # the mark is off
    await bench.run()
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_a_tree_is_paused_resumed_and_cancelled_together(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=FakeDefinitions({"child": plan(node(0), node(1, 0))}))
    root = await bench.start_run(sub_node(0, "child"), node(1))
    await bench.outbox.process()
    child = (await node_row(connection, root, 0))["sub_workflow_id"]
    await control.pause(database, root)
    assert await _statuses(connection) == ["PAUSED", "PAUSED"]
    assert await bench.claim_and_start() == []
    await control.resume(database, root)
    assert await _statuses(connection) == ["RUNNING", "RUNNING"]
    await control.cancel(database, root)
    assert await _statuses(connection) == ["CANCELLED", "CANCELLED"]
    assert await node_statuses(connection, child) == ["SKIPPED", "SKIPPED"]
    await bench.run()
    assert bench.started == []


async def test_retry_failed_goes_on_in_the_runs_below(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(
        database, known=FakeDefinitions({"child": plan(node(0, name="good"), node(1, 0, name="bad"))})
    )
    root = await bench.start_run(sub_node(0, "child"), node(1, 0))
    await bench.run(lambda name: "err" if name == "bad" else "ok")
    before = await node_row(connection, root, 0)
    assert (before["status"], (await run_row(connection, root))["status"]) == ("FAILED", "FAILED")
    assert await control.retry_failed(database, before["sub_workflow_id"]) is ControlRefusal.NOT_ROOT
    assert await control.retry_failed(database, root) == 3
    await bench.run()
    after = await node_row(connection, root, 0)
    assert (after["sub_workflow_id"], after["status"]) == (before["sub_workflow_id"], "COMPLETED")
    assert (await run_row(connection, root))["status"] == "COMPLETED"
    assert bench.started == ["good", "bad", "bad", "n1"]


async def _tasks(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_tasks ORDER BY id")]


async def _statuses(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_workflows ORDER BY id")]
