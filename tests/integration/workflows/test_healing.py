"""Stuck runs are found and healed; healing is idempotent.

`stuck_runs` in workflow_control.sql defines the cases, such as "1.7": the task has ended, its node has not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from horsies.store.database import Database
from horsies.workflows.healing import heal, heal_stuck, preview_healing
from tests.support.store import Connection
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

CLEAR_OUTBOX = "DELETE FROM horsies_workflow_outbox"
KNOWN = FakeDefinitions({"sub": plan(node(0))})


async def test_outcome_without_an_outbox_entry_reaches_its_node(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute(CLEAR_OUTBOX)
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.7"
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "ENQUEUED"]


async def test_last_outcome_finishes_the_run_in_one_pass(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute(CLEAR_OUTBOX)
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.7"
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("status", "document", "code"),
    [
        ("FAILED", None, "WORKER_CRASHED"),
        ("CANCELLED", None, "TASK_CANCELLED"),
        ("EXPIRED", None, "TASK_EXPIRED"),
        ("COMPLETED", None, "RESULT_NOT_AVAILABLE"),
        ("COMPLETED", '{"neither": 1}', "WORKER_CRASHED"),
        ("COMPLETED", '"ok"', "WORKER_CRASHED"),
        ("FAILED", '{"err": {"error_code": "BROKEN"}}', "BROKEN"),
    ],
)
async def test_missing_result_becomes_an_error(
    driver: WorkflowDriver, connection: Connection, status: str, document: str | None, code: str
) -> None:
    workflow_id = await driver.start_run(node(0))
    await connection.execute(
        "UPDATE horsies_tasks SET status = $1, terminal_at = now(), result = $2::text::jsonb", status, document
    )
    await _heal_and_get_case(driver, connection, workflow_id)
    assert (await node_row(connection, workflow_id, 0))["error"]["error_code"] == code
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == code


async def test_node_with_a_deleted_task_fails(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0, allow_failed_deps=True))
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.7"
    assert (await node_row(connection, workflow_id, 0))["error"]["error_code"] == "RESULT_NOT_AVAILABLE"
    assert await node_statuses(connection, workflow_id) == ["FAILED", "ENQUEUED"]


async def test_node_with_a_deleted_sub_workflow_fails(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=KNOWN)
    workflow_id = await driver.start_run(sub_node(0, "sub"))
    await driver.outbox.process()
    await connection.execute("DELETE FROM horsies_workflows WHERE depth = 1")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.7"
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "RESULT_NOT_AVAILABLE"


async def test_pending_node_that_is_due_is_enqueued(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute(CLEAR_OUTBOX)
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED' WHERE task_index = 0")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "0"
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "ENQUEUED"]


async def test_ready_node_without_a_task_is_enqueued(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'READY', task_id = NULL")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1"
    assert await node_statuses(connection, workflow_id) == ["ENQUEUED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_sub_workflow_without_a_start_request_is_started(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database)
    workflow_id = await driver.start_run(sub_node(0, "sub"))
    await connection.execute(CLEAR_OUTBOX)
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.5"
    assert await node_statuses(connection, workflow_id) == ["RUNNING"]


async def test_finished_sub_workflow_finishes_the_node_of_its_parent(
    database: Database, connection: Connection
) -> None:
    driver = WorkflowDriver(database, known=KNOWN)
    workflow_id = await driver.start_run(sub_node(0, "sub"))
    await driver.outbox.process()
    sub_workflow_id = (await node_row(connection, workflow_id, 0))["sub_workflow_id"]
    await connection.execute("UPDATE horsies_workflows SET status = 'FAILED' WHERE id = $1", sub_workflow_id)
    assert await _heal_and_get_case(driver, connection, workflow_id) == "1.6"
    assert (await run_row(connection, workflow_id))["status"] == "FAILED"


async def test_run_with_only_finished_nodes_is_completed(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED'")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "2"
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_run_without_nodes_fails(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await connection.execute("DELETE FROM horsies_workflow_tasks")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "3"
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "WORKFLOW_FAILED"


async def test_orphaned_task_is_cancelled(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'SKIPPED'")
    await connection.execute("UPDATE horsies_workflows SET status = 'CANCELLED'")
    assert await _heal_and_get_case(driver, connection, workflow_id) == "4"
    assert await connection.fetchval("SELECT status FROM horsies_tasks") == "CANCELLED"


async def test_healthy_run_is_unchanged(driver: WorkflowDriver, connection: Connection) -> None:
    await driver.start_run(node(0), node(1, 0), sub_node(2, "sub"))
    await driver.claim_and_start()
    assert await preview_healing(driver.database) == []
    assert await heal(driver.database, FakeDefinitions()) == []


async def test_paused_run_is_unchanged(driver: WorkflowDriver, connection: Connection) -> None:
    await driver.start_run(node(0))
    await connection.execute("UPDATE horsies_workflows SET status = 'PAUSED'")
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'READY', task_id = NULL")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await preview_healing(driver.database) == []


async def test_failing_run_does_not_block_the_others(driver: WorkflowDriver, connection: Connection) -> None:
    good, bad = await driver.start_run(node(0)), await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"' WHERE id = $1", bad)
    await driver.run()
    assert (await run_row(connection, good))["status"] == "COMPLETED"
    row = await connection.fetchrow("SELECT tries, last_error, quarantined_at FROM horsies_workflow_outbox")
    assert row is not None
    assert (row["tries"], row["quarantined_at"]) == (1, None)
    assert row["last_error"]


@pytest.mark.parametrize(
    "damage", [CLEAR_OUTBOX, "UPDATE horsies_workflow_outbox SET created_at = now() - interval '1 hour'"]
)
async def test_run_that_cannot_be_healed_is_retried_with_backoff(
    driver: WorkflowDriver, connection: Connection, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"'")
    await connection.execute(damage)
    for _ in range(3):
        await heal_stuck(driver.database)
    assert len(_logged(caplog)) == 1
    assert await connection.fetchval("SELECT (tries, retry_at > now()) = (1, true) FROM horsies_workflow_outbox")
    await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now()")
    await heal_stuck(driver.database)
    assert await connection.fetchval("SELECT tries FROM horsies_workflow_outbox") == 2
    await connection.execute("UPDATE horsies_workflows SET success_policy = NULL")
    await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now()")
    await driver.outbox.process()
    assert await connection.fetchval("SELECT status FROM horsies_workflows") == "COMPLETED"


@pytest.mark.parametrize("is_paused", [False, True])
async def test_retry_of_a_failed_healing_advances_the_whole_run(
    driver: WorkflowDriver, connection: Connection, *, is_paused: bool
) -> None:
    workflow_id = await driver.start_run(node(0), node(1, 0), node(2, 1), node(3, 2))
    for _ in range(2):
        await driver.finish(await driver.claim_and_start())
        await driver.outbox.process()
    await driver.finish(await driver.claim_and_start())
    await connection.execute(CLEAR_OUTBOX)
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"'")
    await heal_stuck(driver.database)
    status = "PAUSED" if is_paused else "RUNNING"
    await connection.execute("UPDATE horsies_workflows SET success_policy = NULL, status = $1", status)
    await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now()")
    await driver.outbox.process()
    last = "PENDING" if is_paused else "ENQUEUED"
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "COMPLETED", "COMPLETED", last]


async def test_run_stored_without_dependents_starts_them_despite_an_outdated_entry(
    driver: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await driver.start_run(node(0), node(1), node(2, 0))
    await connection.execute("UPDATE horsies_workflow_tasks SET dependents = NULL")
    await driver.finish((await driver.claim_and_start())[:1])
    await connection.execute(
        "INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index) VALUES (gen_random_uuid(), $1, 1)",
        workflow_id,
    )
    await driver.outbox.process()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "RUNNING", "ENQUEUED"]


async def test_locked_runs_do_not_block_the_others(driver: WorkflowDriver, connection: Connection) -> None:
    locked, free = [await driver.start_run(node(0)) for _ in range(40)], await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute(CLEAR_OUTBOX)
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_workflows WHERE id = ANY($1::uuid[]) FOR UPDATE", locked)
        async with asyncio.timeout(15):
            result = await heal_stuck(driver.database)
        assert [run.workflow_id for run in result.healed] == [free]
        assert set(result.locked) == set(locked)
    assert {run.workflow_id for run in (await heal_stuck(driver.database)).healed} == set(locked)


async def test_preview_skips_a_damaged_run(driver: WorkflowDriver, connection: Connection) -> None:
    good, bad = await driver.start_run(node(0)), await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '{}' WHERE id = $1", bad)
    await connection.execute(CLEAR_OUTBOX)
    assert [run.workflow_id for run in await preview_healing(driver.database)] == [good]
    assert [run.workflow_id for run in await heal(driver.database, KNOWN)] == [good]


async def test_damaged_run_logs_one_line_per_try_and_one_traceback(
    driver: WorkflowDriver, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await driver.start_run(node(0)), await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"' WHERE id = $1", bad)
    for tries in (0, 1, 24):
        await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now(), tries = $1", tries)
        await driver.outbox.process()
    assert (await run_row(connection, good))["status"] == "COMPLETED"
    lines = _logged(caplog)
    assert [(record.levelname, record.exc_info is not None) for record in lines] == [
        ("WARNING", False),
        ("WARNING", False),
        ("ERROR", True),
    ]
    assert {record.__dict__["run"] for record in lines} == {str(bad)}


def _logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "horsies.workflow"]


async def test_quarantined_entry_is_retried_after_an_hour(driver: WorkflowDriver, connection: Connection) -> None:
    bad = await driver.start_run(node(0))
    await driver.finish(await driver.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"'")
    await connection.execute("UPDATE horsies_workflow_outbox SET tries = 24")
    await driver.run()
    assert await connection.fetchval("SELECT quarantined_at IS NOT NULL FROM horsies_workflow_outbox")
    assert await connection.fetchval("SELECT workflow_id FROM horsies_events WHERE kind = 'outbox_quarantined'") == bad
    await connection.execute("UPDATE horsies_workflows SET success_policy = NULL")
    await driver.run()
    assert (await run_row(connection, bad))["status"] == "RUNNING", "quarantined"
    await connection.execute("UPDATE horsies_workflow_outbox SET quarantined_at = now() - interval '61 minutes'")
    await heal(driver.database, FakeDefinitions())
    assert (await run_row(connection, bad))["status"] == "COMPLETED"


async def test_successful_advance_deletes_quarantined_entries(driver: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await driver.start_run(node(0), node(1), node(2, 0))
    first, second = await driver.claim_and_start()
    await driver.finish([first])
    await connection.execute("UPDATE horsies_workflow_outbox SET quarantined_at = now()")
    await driver.finish([second])
    await driver.outbox.process()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "COMPLETED", "ENQUEUED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def _heal_and_get_case(driver: WorkflowDriver, connection: Connection, workflow_id: UUID) -> str:
    """Heal the run and return its case; checks the preview, the event and that healing again does nothing."""
    preview = await preview_healing(driver.database)
    before: Any = await connection.fetchval("SELECT count(*) FROM horsies_events")
    healed = await heal(driver.database, KNOWN)
    assert [(run.workflow_id, run.case) for run in preview] == [(run.workflow_id, run.case) for run in healed]
    assert await heal(driver.database, KNOWN) == []
    assert await connection.fetchval("SELECT count(*) FROM horsies_events") == before + 1
    ((found, case),) = {(run.workflow_id, run.case) for run in healed}
    assert found == workflow_id
    return case
