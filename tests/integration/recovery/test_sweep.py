"""A whole sweep, and failures that do not stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from horsies.errors import ConfigurationError
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepStatus, SweepStep
from horsies.recovery.sweep import Sweep, WorkflowHealing, swept_workflows
from horsies.store.workflows import StuckRun
from horsies.workflows.healing import HealingResult, heal_stuck
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
async def test_invalid_worker_row_does_not_stop_a_sweep(
    sweeps: SweepDatabase, column: str, stored: dict[str, object]
) -> None:
    await insert_worker(sweeps.url, **{column: stored})
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    assert (await sweeps.sweep()).recovered_count == 1


async def test_fleet_mismatch_is_a_warning_and_one_event(sweeps: SweepDatabase) -> None:
    await insert_listening_worker(sweeps.url, running_stale_threshold_ms=400_000)
    reports = [await sweeps.sweep() for _ in range(2)]
    assert "300000, 400000" in reports[0].warnings[0]
    assert (await sweeps.events())["fleet_mismatch"] == 1


async def test_only_the_requested_steps_run(sweeps: SweepDatabase) -> None:
    claimed = await insert_owned_task(sweeps.url, "CLAIMED", owner=None, silent_s=9_000)
    running = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    report = await Sweep(sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, steps={SweepStep.CLAIMED}).run()
    assert [task.task_id for task in report.tasks] == [claimed]
    assert await sweeps.row(running, "status") == ("RUNNING",)


async def test_a_second_sweep_finds_nothing(sweeps: SweepDatabase) -> None:
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    await insert_listening_worker(sweeps.url, silent_s=9_000)
    assert (await sweeps.sweep()).status == SweepStatus.DONE
    assert (await sweeps.sweep()).status == SweepStatus.NOTHING


async def test_rejected_update_does_not_stop_other_tasks(sweeps: SweepDatabase) -> None:
    bad = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000, attempts=2**31 - 1)
    good = await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000)
    report = await sweeps.sweep()
    assert {task.task_id: task.applied for task in report.tasks} == {bad: False, good: True}
    assert str(bad) in report.warnings[0]
    assert [task.task_id for task in report.refused] == [bad]
    assert (await sweeps.events())["recovery_refused"] == 1


async def test_report_lists_only_runs_stuck_before_the_sweep(
    sweeps: SweepDatabase,
) -> None:
    stuck, advanced = StuckRun(workflow_id=uuid4(), case="1"), StuckRun(workflow_id=uuid4(), case="1.7")
    links = {"is_workflow_task": True, "workflow_id": stuck.workflow_id, "workflow_task_index": 1}
    await insert_owned_task(sweeps.url, "RUNNING", owner=None, silent_s=9_000, **links)

    async def heal(_: Callable[[], bool]) -> HealingResult:
        return HealingResult(healed=[stuck, advanced])

    async def preview_stuck() -> list[StuckRun]:
        return [stuck]

    healing = WorkflowHealing(heal=heal, preview=preview_stuck)
    preview = await Sweep(
        sweeps.database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, healing=healing
    ).run()
    report = await Sweep(sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=healing).run()
    assert preview.workflows == report.workflows == tuple(swept_workflows([stuck]))


@pytest.mark.parametrize(("runs", "was_stopped"), [(1, False), (3, True)])
async def test_sweep_stopped_while_healing_leaves_the_other_runs(
    sweeps: SweepDatabase, runs: int, was_stopped: bool
) -> None:
    stop = asyncio.Event()
    stuck = [await insert_run(sweeps.url) for _ in range(runs)]

    async def heal(must_end: Callable[[], bool]) -> HealingResult:
        stop.set()
        return await heal_stuck(sweeps.database, must_end=must_end)

    report = await Sweep(
        sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=WorkflowHealing(heal=heal), stop=stop
    ).run()
    assert ([run.id in stuck for run in report.workflows], report.was_stopped) == ([True], was_stopped)


async def test_locked_run_is_previewed_and_then_a_warning(sweeps: SweepDatabase) -> None:
    locked, healing = await insert_run(sweeps.url), WorkflowHealing.for_operator(sweeps.database)
    async with sweeps.connection.transaction():
        await sweeps.connection.execute("SELECT FROM horsies_workflows FOR UPDATE")
        preview = await Sweep(
            sweeps.database, SweepOptions(dry_run=True), observer=OPERATOR_OBSERVER, healing=healing
        ).run()
        report = await Sweep(sweeps.database, SweepOptions(), observer=OPERATOR_OBSERVER, healing=healing).run()
    assert [run.id for run in preview.workflows] == [locked]
    assert (report.workflows, report.locked_runs) == ((), (locked,))
    assert report.warnings == (f"run {locked} is locked by another transaction, left to the next sweep",)


async def test_failed_step_does_not_stop_others_and_is_raised(sweeps: SweepDatabase) -> None:
    task_id = await insert_task(sweeps.url, good_until=seconds_ago(10))
    await sweeps.connection.execute("ALTER FUNCTION horsies_quiet RENAME TO horsies_gone")
    with pytest.raises(ConfigurationError, match="horsies_quiet"):
        await sweeps.sweep()
    assert await sweeps.row(task_id, "status") == ("EXPIRED",)
