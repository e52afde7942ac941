"""Operator actions on workflow runs."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from horsies.errors import HorsiesError
from horsies.model.operator_actions import SkipReason
from horsies_ops.ops import Ops
from tests.support.rows import insert
from tests.support.store import Connection, only_row

AUDIT = ("actor", "action", "reason", "filter ->> 'workflow_id'", "affected", "skipped")


async def _insert_run(database_url: str, connection: Connection, *, status: str, node: str) -> UUID:
    """Insert a run with one node."""
    run, now = uuid4(), await connection.fetchval("SELECT now()")
    await insert(
        database_url,
        "horsies_workflows",
        id=run,
        name="w",
        status=status,
        on_error="fail",
        root_workflow_id=run,
        sent_at=now,
    )
    await insert(
        database_url,
        "horsies_workflow_tasks",
        id=uuid4(),
        workflow_id=run,
        task_index=0,
        node_id="only",
        task_name="mail.send",
        queue_name="default",
        priority=100,
        status=node,
    )
    return run


async def test_pause_and_resume_are_audited(ops: Ops, database_url: str, connection: Connection) -> None:
    run = await _insert_run(database_url, connection, status="RUNNING", node="READY")
    assert (await ops.pause_workflow(run, reason="smtp is down")).affected == 1
    assert await only_row(connection, "horsies_workflows", "status") == ("PAUSED",)
    assert await only_row(connection, "horsies_audit", *AUDIT) == (
        "ada",
        "pause_workflow",
        "smtp is down",
        str(run),
        1,
        0,
    )
    assert (await ops.resume_workflow(str(run))).affected == 1
    assert await only_row(connection, "horsies_workflows", "status") == ("RUNNING",)


async def test_second_cancel_is_skipped(ops: Ops, database_url: str, connection: Connection) -> None:
    run = await _insert_run(database_url, connection, status="RUNNING", node="READY")
    assert (await ops.cancel_workflow(run)).affected == 1
    again = await ops.cancel_workflow(run)
    assert again.skipped == ((run, SkipReason.WORKFLOW_STATE_NOT_ALLOWED),)


async def test_failed_run_is_retried(ops: Ops, database_url: str, connection: Connection) -> None:
    run = await _insert_run(database_url, connection, status="FAILED", node="FAILED")
    report = await ops.retry_workflow(run)
    assert (report.affected, report.retried_nodes) == (1, 1)
    assert await only_row(connection, "horsies_workflows", "status", "generation") == ("RUNNING", 2)


@pytest.mark.parametrize(
    ("action", "status", "why"),
    [
        ("pause_workflow", "COMPLETED", SkipReason.WORKFLOW_STATE_NOT_ALLOWED),
        ("resume_workflow", "RUNNING", SkipReason.WORKFLOW_STATE_NOT_ALLOWED),
        ("retry_workflow", "RUNNING", SkipReason.WORKFLOW_NOT_TERMINAL),
    ],
)
async def test_action_on_run_in_other_state_is_skipped_and_audited(
    ops: Ops, database_url: str, connection: Connection, action: str, status: str, why: str
) -> None:
    run = await _insert_run(database_url, connection, status=status, node="COMPLETED")
    report = await getattr(ops, action)(run)
    assert (report.matched, report.affected, report.skipped) == (1, 0, ((run, why),))
    assert (await only_row(connection, "horsies_audit", *AUDIT))[-2:] == (0, 1)


async def test_unknown_run_is_not_found(ops: Ops, connection: Connection) -> None:
    unknown = uuid4()
    report = await ops.cancel_workflow(unknown)
    assert (report.matched, report.skipped) == (0, ((unknown, SkipReason.WORKFLOW_NOT_FOUND),))
    assert await only_row(connection, "horsies_audit", "matched", "affected", "skipped") == (0, 0, 1)


# Kills the session that writes the audit entry of a change.
KILL_ON_AUDIT = """
    CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
    CREATE TRIGGER die BEFORE INSERT OR UPDATE ON horsies_audit
        FOR EACH ROW WHEN (NEW.affected > 0) EXECUTE FUNCTION die();
"""


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("pause_workflow", "RUNNING"),
        ("resume_workflow", "PAUSED"),
        ("cancel_workflow", "RUNNING"),
        ("retry_workflow", "FAILED"),
    ],
)
async def test_run_is_not_changed_without_its_audit_entry(
    ops: Ops, database_url: str, connection: Connection, action: str, status: str
) -> None:
    run = await _insert_run(database_url, connection, status=status, node="FAILED" if status == "FAILED" else "READY")
    await connection.execute(KILL_ON_AUDIT)
    with pytest.raises(HorsiesError):
        await getattr(ops, action)(run)
    assert await only_row(connection, "horsies_workflows", "status") == (status,)
    assert await connection.fetchval("SELECT count(*) FROM horsies_audit") == 0
