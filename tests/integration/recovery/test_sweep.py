"""What a sweep writes for each verdict, and what keeps it from writing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from horsies.errors import ConfigurationError
from horsies.model.recovery.judging import WorkerJudge
from horsies.model.recovery.options import SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.recovery.healing import Healing
from horsies.recovery.report import Step, SweepReport, SweepStatus, SweptWorkflow
from horsies.recovery.sweeping import sweep
from horsies.store.db import Database, PoolSize
from horsies.store.link import Link
from horsies.store.recovery import RecoveryStore
from tests.support.fleet_rows import insert_worker
from tests.support.silence import BY_HAND, CRASH_RETRY, a_beat, a_task, a_worker, ago, one
from tests.support.task_rows import insert, insert_task
from tests.support.work import hearing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from tests.support.work import Connection


@dataclass(frozen=True)
class Field:
    """A database with one worker that lives, listens and owns nothing."""

    url: str
    database: Database
    connection: Connection

    async def sweep(self, **options: Any) -> SweepReport:
        return await sweep(self.database, SweepOptions(**options), judge=BY_HAND)

    async def row(self, task_id: UUID, *columns: str) -> tuple[Any, ...]:
        return await one(self.connection, task_id, *columns)

    async def events(self) -> Counter[str]:
        return Counter(row["kind"] for row in await self.connection.fetch("SELECT kind FROM horsies_events"))


@pytest.fixture
async def field(database: Database, database_url: str) -> AsyncIterator[Field]:
    await a_worker(database_url)
    connection = await asyncpg.connect(database_url)
    yield Field(database_url, database, connection)
    await connection.close()


async def test_a_stale_claim_goes_back_for_free(field: Field) -> None:
    owner = await a_worker(field.url, state="lost", silent_s=500)
    task_id = await a_task(field.url, "CLAIMED", owner=owner, silent_s=130, claim_expires_at=ago(1))
    async with hearing(field.url, "horsies_task_new") as heard:
        report = await field.sweep()
        assert await heard() == [("horsies_task_new", "default")]
    assert (report.status, report.recovered_count, report.worker_ids) == (SweepStatus.DONE, 1, (owner,))
    told = (
        "status",
        "claimed",
        "claimed_at",
        "claimed_by_worker_id",
        "claim_expires_at",
        "claim_token",
        "failed_reason",
    )
    because = "recovered after worker interruption: OWNER_LOST"
    assert await field.row(task_id, *told) == ("PENDING", False, None, None, None, 1, because)
    counted = await field.row(
        task_id, "retry_count", "crash_count", "attempts", "overlap_possible", "enqueued_at <= now()"
    )
    assert counted == (0, 0, 0, False, True)
    assert await field.events() == {"task_recovered": 1, "sweep_finished": 1}


async def test_a_recovered_task_waits_for_the_recovery_delay(field: Field) -> None:
    task_id = await a_task(field.url, "CLAIMED", owner=None, silent_s=130)
    await field.sweep(recovery_delay=timedelta(seconds=60))
    (wait,) = await field.row(task_id, "enqueued_at - now()")
    assert timedelta(seconds=50) < wait <= timedelta(seconds=60)


async def test_a_stale_claim_past_its_good_until_expires_and_keeps_its_claim(field: Field) -> None:
    owner = await a_worker(field.url, state="stopped")
    task_id = await a_task(field.url, "CLAIMED", owner=owner, silent_s=1, good_until=ago(1))
    await field.sweep()
    told = ("status", "error_code", "result->'err'->'data'->>'worker_id'", "claimed_by_worker_id", "attempts")
    assert await field.row(task_id, *told) == ("EXPIRED", "TASK_EXPIRED", str(owner), owner, 0)


async def test_a_stale_run_that_lists_crashes_is_retried_and_may_overlap(field: Field) -> None:
    task_id = await a_task(
        field.url, "RUNNING", owner=None, silent_s=310, task_options=CRASH_RETRY, max_retries=1, kill_requested=True
    )
    (swept,) = (await field.sweep()).tasks
    assert (swept.decision, swept.reason, swept.retries_left, swept.applied) == ("retry", "OWNER_MISSING", 1, True)
    told = ("status", "retry_count", "crash_count", "attempts", "overlap_possible", "started_at", "kill_requested")
    assert await field.row(task_id, *told) == ("PENDING", 1, 1, 1, True, None, False)
    assert await field.row(task_id, "next_retry_at = enqueued_at", "enqueued_at") == (True, swept.run_at)
    attempt = await field.connection.fetchrow("SELECT * FROM horsies_task_attempts")
    assert attempt is not None
    assert (attempt["outcome"], attempt["error_code"], attempt["will_retry"]) == ("FAILED", "WORKER_CRASHED", True)
    assert (attempt["claim_token"], attempt["worker_pid"]) == (1, 8)
    assert await field.events() == {"task_recovered": 1, "overlap_possible": 1, "sweep_finished": 1}


async def test_a_stale_run_of_a_worker_that_stopped_cannot_overlap(field: Field) -> None:
    owner = await a_worker(field.url, state="stopped")
    task_id = await a_task(field.url, "RUNNING", owner=owner, silent_s=1, task_options=CRASH_RETRY, max_retries=1)
    await field.sweep()
    assert await field.row(task_id, "status", "overlap_possible") == ("PENDING", False)
    assert (await field.events())["overlap_possible"] == 0


async def test_a_stale_run_that_lists_nothing_fails_with_the_cause(field: Field) -> None:
    owner = await a_worker(field.url, silent_s=310)
    task_id = await a_task(field.url, "RUNNING", owner=owner, silent_s=310)
    async with hearing(field.url, "horsies_task_done") as heard:
        report = await field.sweep()
        assert await heard() == [("horsies_task_done", str(task_id))]
    told = ("status", "error_code", "result->'err'->'data'->>'cause'", "crash_count", "attempts", "failed_at IS NULL")
    assert await field.row(task_id, *told) == ("FAILED", "WORKER_CRASHED", "OWNER_LOST", 1, 1, False)
    assert report.worker_ids == (owner,)
    assert await field.connection.fetchval("SELECT state FROM horsies_workers WHERE id = $1", owner) == "lost"
    assert await field.events() == {"worker_lost": 1, "task_recovered": 1, "sweep_finished": 1}


async def test_one_crash_too_many_is_poison_whatever_the_policy(field: Field) -> None:
    task_id = await a_task(
        field.url,
        "RUNNING",
        owner=None,
        silent_s=310,
        task_options=CRASH_RETRY,
        max_retries=1,
        crash_count=9,
        attempts=1,
    )
    earlier = {"task_id": task_id, "attempt": 1, "claim_token": 0, "outcome": "FAILED", "error_code": "WORKER_CRASHED"}
    times = {"started_at": ago(900), "finished_at": ago(800)}
    await insert(field.url, "horsies_task_attempts", **earlier, **times, error_message="CHILD_SIGNAL: process 4 died")
    await field.sweep()
    status, code, causes = await field.row(task_id, "status", "error_code", "result->'err'->'data'->'causes'")
    assert (status, code) == ("FAILED", "POISON_TASK")
    assert json.loads(causes)[0] == "CHILD_SIGNAL: process 4 died"
    assert (await field.events())["task_poisoned"] == 1


@pytest.mark.parametrize("mark", ["paused", "cancelled"])
async def test_a_run_whose_workflow_was_stopped_is_cancelled_and_its_advance_asked_for(field: Field, mark: str) -> None:
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 3}
    task_id = await a_task(
        field.url,
        "RUNNING",
        owner=None,
        silent_s=310,
        task_options=CRASH_RETRY,
        max_retries=1,
        no_restart=mark,
        **links,
    )
    await field.sweep()
    told = ("status", "error_code", "result->'err'->>'message'", "attempts")
    message = f"not started again: its workflow was {mark}"
    assert await field.row(task_id, *told) == ("CANCELLED", "TASK_CANCELLED", message, 1)
    assert await field.connection.fetchval("SELECT task_index FROM horsies_workflow_outbox") == 3


async def test_what_waited_past_its_good_until_expires(field: Field) -> None:
    late = [await insert_task(field.url, good_until=ago(10)) for _ in range(3)]
    other = await insert_task(field.url, good_until=ago(-60))
    links = {"is_workflow_task": True, "workflow_id": uuid4(), "workflow_task_index": 1}
    node = await insert_task(field.url, good_until=ago(10), **links)
    report = await field.sweep()
    assert {task.task_id for task in report.tasks if task.applied} == {*late, node}
    assert (report.recovered_count, {task.reason for task in report.tasks}) == (0, {"GOOD_UNTIL"})
    assert await field.row(late[0], "status", "error_code", "attempts") == ("EXPIRED", "TASK_EXPIRED", 0)
    assert await field.row(other, "status") == ("PENDING",)
    assert await field.connection.fetchval("SELECT task_id FROM horsies_workflow_outbox") == node


async def test_more_than_a_batch_expires(field: Field) -> None:
    await field.connection.execute(
        "INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, good_until)"
        " SELECT gen_random_uuid(), 'x', now(), '', now() - interval '1 s' FROM generate_series(1, 1203)"
    )
    assert sum(task.applied for task in (await field.sweep()).tasks) == 1203


async def test_the_beat_of_the_current_token_keeps_a_task(field: Field) -> None:
    kept = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    await a_beat(field.url, kept, silent_s=10)
    judged = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000, claim_token=2)
    await a_beat(field.url, judged, silent_s=10, token=1)
    await a_beat(field.url, judged, silent_s=10, token=2, role="claimer")
    assert [task.task_id for task in (await field.sweep()).tasks] == [judged]


async def test_a_beat_that_is_old_is_no_better_than_none(field: Field) -> None:
    task_id = await a_task(field.url, "RUNNING", owner=None, silent_s=1)
    await a_beat(field.url, task_id, silent_s=400)
    assert [task.task_id for task in (await field.sweep()).tasks] == [task_id]


async def test_a_sweep_limited_to_an_owner_touches_nothing_else(field: Field) -> None:
    mine, other = await a_worker(field.url, state="stopped"), await a_worker(field.url, state="stopped")
    wanted = await a_task(field.url, "RUNNING", owner=mine, silent_s=1)
    await a_task(field.url, "RUNNING", owner=other, silent_s=1)
    await insert_task(field.url, good_until=ago(10))
    assert [task.task_id for task in (await field.sweep(worker_id=mine)).tasks] == [wanted]


async def test_a_task_that_is_held_is_shown_and_left(field: Field) -> None:
    task_id = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=ago(-60))
    report = await field.sweep()
    (swept,) = report.tasks
    assert (report.status, swept.decision, swept.reason, swept.applied) == ("nothing", "hold", "hook_skip", False)
    assert await field.row(task_id, "status") == ("RUNNING",)


async def test_where_nobody_has_listened_long_enough_the_sweep_says_so_and_until_when(
    database: Database, database_url: str
) -> None:
    await a_worker(database_url, listens_s=10)
    await a_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    report = await sweep(database, SweepOptions(), judge=BY_HAND)
    assert (report.status, report.tasks[0].reason) == (SweepStatus.AMNESTY, "amnesty")
    assert report.tasks[0].held_until is not None
    forced = await sweep(database, SweepOptions(force=True), judge=BY_HAND)
    assert (forced.status, forced.recovered_count) == (SweepStatus.DONE, 1)


OUR_ADVISORY = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
PATIENT_WITH_WORKERS: dict[str, Any] = {"running_stale_threshold_ms": 60_000, "worker_stale_threshold_ms": 300_000}


async def test_a_worker_that_may_only_stand_still_is_not_judged_by_the_silence_of_its_tasks(
    database: Database, database_url: str
) -> None:
    owner = await a_worker(database_url, silent_s=90, **PATIENT_WITH_WORKERS)
    task_id = await a_task(database_url, "RUNNING", owner=owner, silent_s=90)
    report = await sweep(database, SweepOptions(), judge=BY_HAND)
    assert (report.status, [task.task_id for task in report.tasks]) == (SweepStatus.AMNESTY, [task_id])
    forced = await sweep(database, SweepOptions(force=True), judge=BY_HAND)
    assert forced.recovered_count == 1


async def test_past_its_own_threshold_the_only_worker_there_is_counts_as_dead(
    database: Database, database_url: str
) -> None:
    owner = await a_worker(database_url, silent_s=310, **PATIENT_WITH_WORKERS)
    await a_task(database_url, "RUNNING", owner=owner, silent_s=310)
    assert (await sweep(database, SweepOptions(), judge=BY_HAND)).recovered_count == 1


@pytest.mark.parametrize(
    ("column", "stored"),
    [("recovery_config", {"recovery_delay_ms": None}), ("health", {"listening_since": "2026-01-01T00:00:00"})],
)
async def test_one_odd_row_of_a_worker_stops_no_sweep(field: Field, column: str, stored: dict[str, object]) -> None:
    await insert_worker(field.url, **{column: stored})
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await field.sweep()).recovered_count == 1


async def test_a_worker_that_just_started_does_not_keep_others_from_settling(field: Field) -> None:
    await a_worker(field.url, listens_s=1)
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await field.sweep()).recovered_count == 1


async def test_amnesty_beside_a_certain_death_is_a_warning(database: Database, database_url: str) -> None:
    await a_worker(database_url, listens_s=10)
    stopped = await a_worker(database_url, state="stopped")
    await a_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await a_task(database_url, "RUNNING", owner=stopped, silent_s=1)
    report = await sweep(database, SweepOptions(), judge=BY_HAND)
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert report.warnings == ("1 held back: nobody has listened for a whole threshold yet",)


async def test_workers_that_disagree_are_a_warning_and_one_event(field: Field) -> None:
    await a_worker(field.url, running_stale_threshold_ms=400_000)
    reports = [await field.sweep() for _ in range(2)]
    assert "300000, 400000" in reports[0].warnings[0]
    assert (await field.events())["fleet_mismatch"] == 1


async def test_a_reaper_whose_switches_are_off_leaves_what_an_operator_settles(field: Field) -> None:
    task_id = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    config = RecoveryConfig(auto_fail_stale_running=False)
    judge = WorkerJudge(worker_id=uuid4(), config=config, listening_since=ago(9_000))
    (left,) = (await sweep(field.database, SweepOptions(), judge=judge)).tasks
    assert (left.decision, left.reason) == ("leave", "disabled")
    await field.sweep()
    assert await field.row(task_id, "status") == ("FAILED",)


async def test_a_reaper_that_has_not_listened_does_not_even_read(field: Field) -> None:
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    judge = WorkerJudge(worker_id=uuid4(), config=RecoveryConfig(), listening_since=ago(1))
    assert (await sweep(field.database, SweepOptions(), judge=judge)).tasks == ()


async def test_only_the_steps_asked_for_are_made(field: Field) -> None:
    claimed = await a_task(field.url, "CLAIMED", owner=None, silent_s=9_000)
    running = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, steps={Step.CLAIMED})
    assert [task.task_id for task in report.tasks] == [claimed]
    assert await field.row(running, "status") == ("RUNNING",)


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

    async def heal() -> list[SweptWorkflow]:
        await field.connection.execute(f"SELECT pg_terminate_backend(({holder}))")
        return []

    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, healing=Healing(heal=heal))
    assert (report.status, report.recovered_count) == (SweepStatus.DONE, 1)
    assert await field.row(task_id, "status") == ("FAILED",)


async def test_a_turn_outlives_the_limit_of_the_server_for_idle_transactions(field: Field) -> None:
    database = await field.connection.fetchval("SELECT current_database()")
    await field.connection.execute(f'ALTER DATABASE "{database}" SET idle_in_transaction_session_timeout = 50')
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    still_held = f"SELECT count(*) FROM pg_locks WHERE {OUR_ADVISORY} AND pg_sleep(0.3) IS NOT NULL"

    async def heal() -> list[SweptWorkflow]:
        assert await field.connection.fetchval(still_held) == 1
        return []

    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, healing=Healing(heal=heal))
    assert report.recovered_count == 1


async def test_a_second_sweep_finds_nothing(field: Field) -> None:
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    await a_worker(field.url, silent_s=9_000)
    assert (await field.sweep()).status == SweepStatus.DONE
    assert (await field.sweep()).status == SweepStatus.NOTHING


async def test_a_row_that_the_server_refuses_costs_no_other(field: Field) -> None:
    bad = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000, attempts=2**31 - 1)
    good = await a_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await field.sweep()
    assert {task.task_id: task.applied for task in report.tasks} == {bad: False, good: True}
    assert str(bad) in report.warnings[0]
    assert [task.task_id for task in report.refused] == [bad]
    assert (await field.events())["recovery_refused"] == 1


async def test_amnesty_beside_a_hold_is_no_more_than_a_warning(database: Database, database_url: str) -> None:
    await a_worker(database_url, listens_s=10)
    await a_task(database_url, "RUNNING", owner=None, silent_s=9_000)
    await a_task(database_url, "RUNNING", owner=None, silent_s=9_000, recovery_hold_until=ago(-3_600))
    report = await sweep(database, SweepOptions(), judge=BY_HAND)
    assert report.status == SweepStatus.NOTHING
    assert report.warnings == ("1 held back: nobody has listened for a whole threshold yet",)


async def test_a_run_that_was_stuck_is_told_and_one_that_goes_on_because_of_the_sweep_is_not(field: Field) -> None:
    stuck, moved = SweptWorkflow(id=uuid4(), case="1"), SweptWorkflow(id=uuid4(), case="1.7")
    links = {"is_workflow_task": True, "workflow_id": stuck.id, "workflow_task_index": 1}
    await a_task(field.url, "RUNNING", owner=None, silent_s=9_000, **links)

    async def heal() -> list[SweptWorkflow]:
        return [stuck, moved]

    async def foresee() -> list[SweptWorkflow]:
        return [stuck]

    healing = Healing(heal=heal, foresee=foresee)
    looked = await sweep(field.database, SweepOptions(dry_run=True), judge=BY_HAND, healing=healing)
    report = await sweep(field.database, SweepOptions(), judge=BY_HAND, healing=healing)
    assert looked.workflows == report.workflows == (stuck,)


async def test_a_step_that_fails_stops_no_other_and_is_raised_at_the_end(field: Field) -> None:
    task_id = await insert_task(field.url, good_until=ago(10))
    await field.connection.execute("ALTER FUNCTION horsies_quiet RENAME TO horsies_gone")
    with pytest.raises(ConfigurationError, match="horsies_quiet"):
        await field.sweep()
    assert await field.row(task_id, "status") == ("EXPIRED",)
