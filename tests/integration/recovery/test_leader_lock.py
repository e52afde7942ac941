"""The leader lock: one sweep at a time, but correctness does not depend on it."""

from __future__ import annotations

from collections.abc import Callable

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import Sweep, WorkflowHealing
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.recovery import RecoveryStore
from horsies.workflows.healing import HealingResult
from tests.support.rows import OPERATOR_OBSERVER, SweepDatabase, insert_owned_task

ADVISORY_LOCKS = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


async def test_sweep_is_busy_while_another_holds_the_lock(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    report = await RecoveryStore(sweeps.database).with_leader_lock(sweeps.sweep)
    assert report is not None
    assert (report.status, report.tasks) == (SweepStatus.BUSY, ())
    assert await sweeps.row(task_id, "status") == ("RUNNING",)
    assert (await sweeps.sweep()).status == SweepStatus.DONE


async def test_sweep_works_with_a_pool_of_one_connection(database_url: str) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    spec = ConnectionSpec(url=database_url, masked_url="test")
    async with Database(spec, PoolSettings(max_size=1, acquire_timeout_s=0.5)) as small:
        assert (await Sweep(small, SweepOptions(), observer=OPERATOR_OBSERVER).run()).recovered_count == 1


async def test_losing_the_lock_keeps_the_work_done(sweeps: SweepDatabase) -> None:
    task_id = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    holder = f"SELECT pid FROM pg_locks WHERE {ADVISORY_LOCKS}"

    async def heal(_: Callable[[], bool]) -> HealingResult:
        await sweeps.connection.execute(f"SELECT pg_terminate_backend(({holder}))")
        return HealingResult()

    report = await Sweep(
        sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal)
    ).run()
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert await sweeps.row(task_id, "status") == ("FAILED",)


async def test_lock_survives_the_idle_in_transaction_timeout(sweeps: SweepDatabase) -> None:
    database = await sweeps.connection.fetchval("SELECT current_database()")
    await sweeps.connection.execute(f'ALTER DATABASE "{database}" SET idle_in_transaction_session_timeout = 50')
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    still_held = f"SELECT count(*) FROM pg_locks WHERE {ADVISORY_LOCKS} AND pg_sleep(0.3) IS NOT NULL"

    async def heal(_: Callable[[], bool]) -> HealingResult:
        assert await sweeps.connection.fetchval(still_held) == 1
        return HealingResult()

    report = await Sweep(
        sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal)
    ).run()
    assert report.recovered_count == 1
