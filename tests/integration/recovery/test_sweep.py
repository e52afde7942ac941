"""What a sweep does as a whole, and what does not stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from horsies.errors import ConfigurationError
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus, SweepStep
from horsies.recovery.sweep import WorkflowHealing, sweep, swept_workflows
from horsies.workflows.healing import HealedRun, HealingResult, heal_stuck
from tests.support.rows import (
    OPERATOR_OBSERVER,
    SweepDatabase,
    insert_listening_worker,
    insert_owned_task,
    insert_run,
    insert_task,
    insert_worker,
    seconds_ago,
)


@pytest.mark.parametrize(
    ("column", "stored"),
    [("recovery_config", {"recovery_delay_ms": None}), ("health", {"listening_since": "2026-01-01T00:00:00"})],
)
async def test_one_odd_row_of_a_worker_stops_no_sweep(
    field: SweepDatabase, column: str, stored: dict[str, object]
) -> None:
    await insert_worker(field.url, **{column: stored})
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await field.sweep()).recovered_count == 1


async def test_workers_that_disagree_are_a_warning_and_one_event(field: SweepDatabase) -> None:
    await insert_listening_worker(field.url, running_stale_threshold_ms=400_000)
    reports = [await field.sweep() for _ in range(2)]
    assert "300000, 400000" in reports[0].warnings[0]
    assert (await field.events())["fleet_mismatch"] == 1


async def test_only_the_steps_asked_for_are_made(field: SweepDatabase) -> None:
    claimed = await insert_owned_task(field.url, "CLAIMED", owner=None, silent_s=9_000)
    running = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await sweep(field.database, SweepOptions(), observer=OPERATOR_OBSERVER, steps={SweepStep.CLAIMED})
    assert [task.task_id for task in report.tasks] == [claimed]
    assert await field.row(running, "status") == ("RUNNING",)


async def test_a_second_sweep_finds_nothing(field: SweepDatabase) -> None:
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    await insert_listening_worker(field.url, silent_s=9_000)
    assert (await field.sweep()).status == SweepStatus.DONE
    assert (await field.sweep()).status == SweepStatus.NOTHING


async def test_a_row_that_the_server_refuses_costs_no_other(field: SweepDatabase) -> None:
    bad = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000, attempts=2**31 - 1)
    good = await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000)
    report = await field.sweep()
    assert {task.task_id: task.applied for task in report.tasks} == {bad: False, good: True}
    assert str(bad) in report.warnings[0]
    assert [task.task_id for task in report.refused] == [bad]
    assert (await field.events())["recovery_refused"] == 1


async def test_a_run_that_was_stuck_is_told_and_one_that_goes_on_because_of_the_sweep_is_not(
    field: SweepDatabase,
) -> None:
    stuck, moved = HealedRun(workflow_id=uuid4(), case="1"), HealedRun(workflow_id=uuid4(), case="1.7")
    links = {"is_workflow_task": True, "workflow_id": stuck.workflow_id, "workflow_task_index": 1}
    await insert_owned_task(field.url, "RUNNING", owner=None, silent_s=9_000, **links)

    async def heal(_: Callable[[], bool]) -> HealingResult:
        return HealingResult(healed=[stuck, moved])

    async def foresee() -> list[HealedRun]:
        return [stuck]

    healing = WorkflowHealing(heal=heal, preview=foresee)
    looked = await sweep(field.database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, healing=healing)
    report = await sweep(field.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=healing)
    assert looked.workflows == report.workflows == tuple(swept_workflows([stuck]))


@pytest.mark.parametrize(("runs", "was_stopped"), [(1, False), (3, True)])
async def test_a_sweep_that_is_stopped_while_it_heals_leaves_the_runs_that_it_did_not_get_to(
    field: SweepDatabase, runs: int, was_stopped: bool
) -> None:
    stop = asyncio.Event()
    stuck = [await insert_run(field.url) for _ in range(runs)]

    async def heal(is_over: Callable[[], bool]) -> HealingResult:
        stop.set()
        return await heal_stuck(field.database, is_over=is_over)

    report = await sweep(
        field.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal), stop=stop
    )
    assert ([each.id in stuck for each in report.workflows], report.was_stopped) == ([True], was_stopped)


async def test_a_run_in_another_hand_is_foreseen_and_then_a_warning(field: SweepDatabase) -> None:
    held, healing = await insert_run(field.url), WorkflowHealing.for_operator(field.database)
    async with field.connection.transaction():
        await field.connection.execute("SELECT FROM horsies_workflows FOR UPDATE")
        looked = await sweep(field.database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, healing=healing)
        report = await sweep(field.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=healing)
    assert [each.id for each in looked.workflows] == [held]
    assert (report.workflows, report.locked_runs) == ((), (held,))
    assert report.warnings == (f"run {held} is locked by another transaction, left to the next sweep",)


async def test_a_step_that_fails_stops_no_other_and_is_raised_at_the_end(field: SweepDatabase) -> None:
    task_id = await insert_task(field.url, good_until=seconds_ago(10))
    await field.connection.execute("ALTER FUNCTION horsies_quiet RENAME TO horsies_gone")
    with pytest.raises(ConfigurationError, match="horsies_quiet"):
        await field.sweep()
    assert await field.row(task_id, "status") == ("EXPIRED",)
