"""Where nobody has listened for long enough, a sweep holds back, and says so."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from horsies.model.recovery.fleet import SweepOptions, WorkerObserver
from horsies.model.settings import RecoveryConfig
from horsies.recovery.report import SweepStatus
from horsies.recovery.sweep import sweep
from horsies.store.database import Database
from tests.support.rows import OPERATOR_OBSERVER, SweepDatabase, insert_listening_worker, insert_owned_task, seconds_ago

PATIENT_WITH_WORKERS: dict[str, Any] = {"running_stale_threshold_ms": 60_000, "worker_stale_threshold_ms": 300_000}


async def test_where_nobody_has_listened_long_enough_the_sweep_says_so_and_until_when(
    database: Database, database_url: str
) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    report = await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER)
    assert (report.status, report.tasks[0].reason) == (SweepStatus.OUTAGE_GRACE, "outage_grace")
    assert report.tasks[0].held_until is not None
    forced = await sweep(database, SweepOptions(force=True), observer=OPERATOR_OBSERVER)
    assert (forced.status, forced.recovered_count) == (SweepStatus.DONE, 1)


async def test_a_worker_that_may_only_stand_still_is_not_judged_by_the_silence_of_its_tasks(
    database: Database, database_url: str
) -> None:
    owner = await insert_listening_worker(database_url, silent_s=90, **PATIENT_WITH_WORKERS)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=90)
    report = await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER)
    assert (report.status, [task.task_id for task in report.tasks]) == (SweepStatus.OUTAGE_GRACE, [task_id])
    forced = await sweep(database, SweepOptions(force=True), observer=OPERATOR_OBSERVER)
    assert forced.recovered_count == 1


async def test_past_its_own_threshold_the_only_worker_there_is_counts_as_dead(
    database: Database, database_url: str
) -> None:
    # Long before this server was started: of one that beat shortly before, nobody could know yet.
    owner = await insert_listening_worker(database_url, silent_s=86_000, **PATIENT_WITH_WORKERS)
    await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=86_000)
    assert (await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER)).recovered_count == 1


async def test_a_worker_that_just_started_does_not_keep_others_from_settling(field: SweepDatabase) -> None:
    await insert_listening_worker(field.url, listens_s=1)
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await field.sweep()).recovered_count == 1


async def test_outage_grace_beside_a_certain_death_is_a_warning(database: Database, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    stopped = await insert_listening_worker(database_url, state="stopped")
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await insert_owned_task(database_url, "RUNNING", owner=stopped, silent_s=1)
    report = await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER)
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert report.warnings == ("1 held back by outage grace: no worker connected for a full threshold",)


async def test_outage_grace_beside_a_hold_is_no_more_than_a_warning(database: Database, database_url: str) -> None:
    await insert_listening_worker(database_url, listens_s=10)
    await insert_owned_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await insert_owned_task(
        database_url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=seconds_ago(-3_600)
    )
    report = await sweep(database, SweepOptions(), observer=OPERATOR_OBSERVER)
    assert report.status == SweepStatus.NOTHING
    assert report.warnings == ("1 held back by outage grace: no worker connected for a full threshold",)


async def test_a_reaper_that_has_not_listened_does_not_even_read(field: SweepDatabase) -> None:
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    judge = WorkerObserver(worker_id=uuid4(), config=RecoveryConfig(), listening_since=seconds_ago(1))
    assert (await sweep(field.database, SweepOptions(), observer=judge)).tasks == ()
