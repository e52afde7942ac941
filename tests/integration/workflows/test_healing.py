"""What was left by those who died is found and put right, and healing twice changes nothing."""

from __future__ import annotations

import asyncio
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

FORGET = "DELETE FROM horsies_workflow_outbox"
KNOWN = FakeDefinitions({"child": plan(node(0))})


async def test_a_result_whose_advance_was_forgotten_is_taken_over(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute(FORGET)
    assert await _heals(bench, connection, workflow_id) == "1.7"
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "ENQUEUED"]


async def test_the_last_result_closes_the_run_in_one_pass(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute(FORGET)
    assert await _heals(bench, connection, workflow_id) == "1.7"
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
async def test_a_result_is_made_up_where_none_is_stored(
    bench: WorkflowDriver, connection: Connection, status: str, document: str | None, code: str
) -> None:
    workflow_id = await bench.start_run(node(0))
    await connection.execute(
        "UPDATE horsies_tasks SET status = $1, terminal_at = now(), result = $2::text::jsonb", status, document
    )
    await _heals(bench, connection, workflow_id)
    assert (await node_row(connection, workflow_id, 0))["error"]["error_code"] == code
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == code


async def test_a_node_whose_task_was_deleted_fails_and_its_run_goes_on(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0, allow_failed_deps=True))
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heals(bench, connection, workflow_id) == "1.7"
    assert (await node_row(connection, workflow_id, 0))["error"]["error_code"] == "RESULT_NOT_AVAILABLE"
    assert await node_statuses(connection, workflow_id) == ["FAILED", "ENQUEUED"]


async def test_a_node_whose_run_was_deleted_fails(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=KNOWN)
    workflow_id = await bench.start_run(sub_node(0, "child"))
    await bench.outbox.process()
    await connection.execute("DELETE FROM horsies_workflows WHERE depth = 1")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heals(bench, connection, workflow_id) == "1.7"
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "RESULT_NOT_AVAILABLE"


async def test_a_node_that_could_have_started_is_started(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0), node(1, 0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute(FORGET)
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED' WHERE task_index = 0")
    assert await _heals(bench, connection, workflow_id) == "0"
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "ENQUEUED"]


async def test_a_ready_node_without_a_task_is_enqueued(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'READY', task_id = NULL")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heals(bench, connection, workflow_id) == "1"
    assert await node_statuses(connection, workflow_id) == ["ENQUEUED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_a_sub_workflow_that_nobody_was_asked_to_start_is_started(
    database: Database, connection: Connection
) -> None:
    bench = WorkflowDriver(database)
    workflow_id = await bench.start_run(sub_node(0, "child"))
    await connection.execute(FORGET)
    assert await _heals(bench, connection, workflow_id) == "1.5"
    assert await node_statuses(connection, workflow_id) == ["RUNNING"]


async def test_a_parent_that_was_not_told_of_its_child_goes_on(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=KNOWN)
    workflow_id = await bench.start_run(sub_node(0, "child"))
    await bench.outbox.process()
    child = (await node_row(connection, workflow_id, 0))["sub_workflow_id"]
    await connection.execute("UPDATE horsies_workflows SET status = 'FAILED' WHERE id = $1", child)
    assert await _heals(bench, connection, workflow_id) == "1.6"
    assert (await run_row(connection, workflow_id))["status"] == "FAILED"


async def test_a_run_whose_nodes_have_all_ended_is_closed(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED'")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heals(bench, connection, workflow_id) == "2"
    assert (await run_row(connection, workflow_id))["status"] == "COMPLETED"


async def test_a_run_without_nodes_has_failed(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await connection.execute("DELETE FROM horsies_workflow_tasks")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await _heals(bench, connection, workflow_id) == "3"
    assert (await run_row(connection, workflow_id))["error"]["error_code"] == "WORKFLOW_FAILED"


async def test_a_task_without_a_node_is_cancelled(bench: WorkflowDriver, connection: Connection) -> None:
    workflow_id = await bench.start_run(node(0))
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'SKIPPED'")
    await connection.execute("UPDATE horsies_workflows SET status = 'CANCELLED'")
    assert await _heals(bench, connection, workflow_id) == "4"
    assert await connection.fetchval("SELECT status FROM horsies_tasks") == "CANCELLED"


async def test_a_healthy_run_is_left_alone(bench: WorkflowDriver, connection: Connection) -> None:
    await bench.start_run(node(0), node(1, 0), sub_node(2, "child"))
    await bench.claim_and_start()
    assert await preview_healing(bench.database) == []
    assert await heal(bench.database, FakeDefinitions()) == []


async def test_a_paused_run_is_left_alone(bench: WorkflowDriver, connection: Connection) -> None:
    await bench.start_run(node(0))
    await connection.execute("UPDATE horsies_workflows SET status = 'PAUSED'")
    await connection.execute("UPDATE horsies_workflow_tasks SET status = 'READY', task_id = NULL")
    await connection.execute("DELETE FROM horsies_tasks")
    assert await preview_healing(bench.database) == []


async def test_one_run_that_cannot_be_advanced_does_not_hold_up_the_others(
    bench: WorkflowDriver, connection: Connection
) -> None:
    good, bad = await bench.start_run(node(0)), await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"' WHERE id = $1", bad)
    await bench.run()
    assert (await run_row(connection, good))["status"] == "COMPLETED"
    row = await connection.fetchrow("SELECT tries, last_error, quarantined_at FROM horsies_workflow_outbox")
    assert row is not None
    assert (row["tries"], row["quarantined_at"]) == (1, None)
    assert row["last_error"]


@pytest.mark.parametrize(
    "forget", [FORGET, "UPDATE horsies_workflow_outbox SET created_at = now() - interval '1 hour'"]
)
async def test_a_run_that_cannot_be_healed_is_tried_ever_more_seldom(
    bench: WorkflowDriver, connection: Connection, caplog: pytest.LogCaptureFixture, forget: str
) -> None:
    await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"'")
    await connection.execute(forget)
    for _ in range(3):
        await heal_stuck(bench.database)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert await connection.fetchval("SELECT (tries, retry_at > now()) = (1, true) FROM horsies_workflow_outbox")
    await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now()")
    await heal_stuck(bench.database)
    assert await connection.fetchval("SELECT tries FROM horsies_workflow_outbox") == 2
    await connection.execute("UPDATE horsies_workflows SET success_policy = NULL")
    await connection.execute("UPDATE horsies_workflow_outbox SET retry_at = now()")
    await bench.outbox.process()
    assert await connection.fetchval("SELECT status FROM horsies_workflows") == "COMPLETED"


async def test_runs_that_somebody_holds_do_not_hold_up_the_others(
    bench: WorkflowDriver, connection: Connection
) -> None:
    held, free = [await bench.start_run(node(0)) for _ in range(40)], await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute(FORGET)
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_workflows WHERE id = ANY($1::uuid[]) FOR UPDATE", held)
        async with asyncio.timeout(15):
            righted = await heal_stuck(bench.database)
        assert [each.workflow_id for each in righted.healed] == [free]
        assert set(righted.locked) == set(held)
    assert {each.workflow_id for each in (await heal_stuck(bench.database)).healed} == set(held)


async def test_a_dry_run_looks_past_a_run_that_is_damaged(bench: WorkflowDriver, connection: Connection) -> None:
    good, bad = await bench.start_run(node(0)), await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute("UPDATE horsies_workflow_tasks SET dependencies = '{77}' WHERE workflow_id = $1", bad)
    await connection.execute(FORGET)
    assert [each.workflow_id for each in await preview_healing(bench.database)] == [good]
    assert [each.workflow_id for each in await heal(bench.database, KNOWN)] == [good]


async def test_what_fails_too_often_is_set_aside_and_tried_again_after_an_hour(
    bench: WorkflowDriver, connection: Connection
) -> None:
    bad = await bench.start_run(node(0))
    await bench.finish(await bench.claim_and_start())
    await connection.execute("UPDATE horsies_workflows SET success_policy = '\"odd\"'")
    await connection.execute("UPDATE horsies_workflow_outbox SET tries = 24")
    await bench.run()
    assert await connection.fetchval("SELECT quarantined_at IS NOT NULL FROM horsies_workflow_outbox")
    assert await connection.fetchval("SELECT workflow_id FROM horsies_events WHERE kind = 'outbox_quarantined'") == bad
    await connection.execute("UPDATE horsies_workflows SET success_policy = NULL")
    await bench.run()
    assert (await run_row(connection, bad))["status"] == "RUNNING", "set aside"
    await connection.execute("UPDATE horsies_workflow_outbox SET quarantined_at = now() - interval '61 minutes'")
    await heal(bench.database, FakeDefinitions())
    assert (await run_row(connection, bad))["status"] == "COMPLETED"


async def test_what_was_set_aside_is_forgotten_by_an_advance_that_goes_well(
    bench: WorkflowDriver, connection: Connection
) -> None:
    workflow_id = await bench.start_run(node(0), node(1), node(2, 0))
    first, second = await bench.claim_and_start()
    await bench.finish([first])
    await connection.execute("UPDATE horsies_workflow_outbox SET quarantined_at = now()")
    await bench.finish([second])
    await bench.outbox.process()
    assert await node_statuses(connection, workflow_id) == ["COMPLETED", "COMPLETED", "ENQUEUED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def _heals(bench: WorkflowDriver, connection: Connection, workflow_id: UUID) -> str:
    """The case that is found; told beforehand, put right once, and written down."""
    foreseen = await preview_healing(bench.database)
    before: Any = await connection.fetchval("SELECT count(*) FROM horsies_events")
    healed = await heal(bench.database, KNOWN)
    assert [(each.workflow_id, each.case) for each in foreseen] == [(each.workflow_id, each.case) for each in healed]
    assert await heal(bench.database, KNOWN) == []
    assert await connection.fetchval("SELECT count(*) FROM horsies_events") == before + 1
    ((found, case),) = {(each.workflow_id, each.case) for each in healed}
    assert found == workflow_id
    return case
