"""The sweep as an operator's action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.recovery.options import SweepOptions
from tests.support.silence import a_task, a_worker
from tests.support.work import columns_of

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from tests.support.work import Connection


async def test_the_reason_of_a_sweep_is_on_record(ops: Ops, connection: Connection, database_url: str) -> None:
    gone = await a_worker(database_url, state="lost", silent_s=3_600)
    await a_task(database_url, "CLAIMED", owner=gone, silent_s=3_600)
    report = await ops.sweep(SweepOptions(worker_id=gone), reason="host-3 is being replaced")
    assert report.recovered_count == 1
    assert await columns_of(connection, "horsies_audit", "actor", "action", "affected", "reason") == (
        "ada",
        "sweep",
        1,
        "host-3 is being replaced",
    )
