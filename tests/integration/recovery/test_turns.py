"""One sweeps at a time, and nothing depends on it."""

from __future__ import annotations

from collections.abc import Callable

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import WorkflowHealing, sweep
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.recovery import RecoveryStore
from horsies.workflows.healing import HealingResult
from tests.support.rows import OPERATOR_OBSERVER, SweepDatabase, insert_owned_task

OUR_ADVISORY = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


async def test_somebody_elses_turn_is_said_and_nothing_done(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await RecoveryStore(field.database).with_leader_lock(field.sweep)
    assert report is not None
    assert (report.status, report.tasks) == (SweepStatus.BUSY, ())
    assert await field.row(task_id, "status") == ("RUNNING",)
    assert (await field.sweep()).status == SweepStatus.DONE


async def test_one_connection_in_the_pool_is_enough(database_url: str) -> None:
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    link = ConnectionSpec(url=database_url, masked_url="test")
    async with Database(link, PoolSettings(max_size=1, acquire_timeout_s=0.5)) as small:
        assert (await sweep(small, SweepOptions(), observer=OPERATOR_OBSERVER)).recovered_count == 1


async def test_a_turn_that_is_lost_meanwhile_costs_nothing_that_was_done(field: SweepDatabase) -> None:
    task_id = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    holder = f"SELECT pid FROM pg_locks WHERE {OUR_ADVISORY}"

    async def heal(_: Callable[[], bool]) -> HealingResult:
        await field.connection.execute(f"SELECT pg_terminate_backend(({holder}))")
        return HealingResult()

    report = await sweep(field.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal))
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert await field.row(task_id, "status") == ("FAILED",)


async def test_a_turn_outlives_the_limit_of_the_server_for_idle_transactions(field: SweepDatabase) -> None:
    database = await field.connection.fetchval("SELECT current_database()")
    await field.connection.execute(f'ALTER DATABASE "{database}" SET idle_in_transaction_session_timeout = 50')
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    still_held = f"SELECT count(*) FROM pg_locks WHERE {OUR_ADVISORY} AND pg_sleep(0.3) IS NOT NULL"

    async def heal(_: Callable[[], bool]) -> HealingResult:
        assert await field.connection.fetchval(still_held) == 1
        return HealingResult()

    report = await sweep(field.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal))
    assert report.recovered_count == 1
