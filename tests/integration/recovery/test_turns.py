"""One sweeps at a time, and nothing depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import Healing, sweep
from horsies.store.connection import Link
from horsies.store.database import Database, PoolSize
from horsies.store.recovery import RecoveryStore
from horsies.workflows.healing import Righted
from tests.support.rows import BY_HAND, a_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.rows import Field

OUR_ADVISORY = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


async def test_somebody_elses_turn_is_said_and_nothing_done(field: Field) -> None:
    task_id = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await RecoveryStore(field.database).in_turn(field.sweep)
    assert report is not None
    assert (report.status, report.tasks) == (SweepStatus.BUSY, ())
    assert await field.row(task_id, "status") == ("RUNNING",)
    assert (await field.sweep()).status == SweepStatus.DONE


async def test_one_connection_in_the_pool_is_enough(database_url: str) -> None:
    await a_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    link = Link(url=database_url, masked_url="test")
    async with Database(link, PoolSize(largest=1, wait_s=0.5)) as small:
        assert (await sweep(small, SweepOptions(), judge=BY_HAND)).recovered_count == 1


async def test_a_turn_that_is_lost_meanwhile_costs_nothing_that_was_done(field: Field) -> None:
    task_id = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    holder = f"SELECT pid FROM pg_locks WHERE {OUR_ADVISORY}"

    async def heal(_: Callable[[], bool]) -> Righted:
        await field.connection.execute(f"SELECT pg_terminate_backend(({holder}))")
        return Righted()

    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, healing=Healing(heal=heal))
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert await field.row(task_id, "status") == ("FAILED",)


async def test_a_turn_outlives_the_limit_of_the_server_for_idle_transactions(field: Field) -> None:
    database = await field.connection.fetchval("SELECT current_database()")
    await field.connection.execute(f'ALTER DATABASE "{database}" SET idle_in_transaction_session_timeout = 50')
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    still_held = f"SELECT count(*) FROM pg_locks WHERE {OUR_ADVISORY} AND pg_sleep(0.3) IS NOT NULL"

    async def heal(_: Callable[[], bool]) -> Righted:
        assert await field.connection.fetchval(still_held) == 1
        return Righted()

    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, healing=Healing(heal=heal))
    assert report.recovered_count == 1
