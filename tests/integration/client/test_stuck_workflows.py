"""Healing of stuck workflows through the broker."""

from __future__ import annotations

from horsies import Horsies
from tests.support.store import Connection
from tests.support.workflow_app import register_workflow_tasks
from tests.support.workflows import diamond


async def test_broker_heals_stuck_workflows(app: Horsies, connection: Connection) -> None:
    register_workflow_tasks(app)
    handle = (await diamond(app).start_async()).unwrap()
    assert await app.get_broker().recover_stuck_workflows() == 0
    await connection.execute("UPDATE horsies_tasks SET status = 'EXPIRED', terminal_at = now()")
    assert await app.get_broker().recover_stuck_workflows() == 1
    assert (await handle.get_async(0)).err_value.error_code == "TASK_EXPIRED"


async def test_broker_counts_workflows_not_orphaned_tasks(app: Horsies, connection: Connection) -> None:
    register_workflow_tasks(app)
    handles = [(await diamond(app).start_async()).unwrap() for _ in range(2)]
    await connection.execute(
        "UPDATE horsies_workflow_tasks SET task_id = NULL, status = 'COMPLETED' WHERE task_id IS NOT NULL"
    )
    healed = await app.get_broker().recover_stuck_workflows()
    assert healed == len(handles)
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'CANCELLED'") == 2
