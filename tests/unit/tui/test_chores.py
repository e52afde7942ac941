from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory
from horsies.model.settings import RecoveryConfig
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.demo.source import DemoSource
from horsies_tui.proposals.sweep import propose_cleanup
from horsies_tui.screens.maintenance import (
    MAINTENANCE_COLUMNS,
    MaintenanceCommand,
    MaintenanceData,
    MaintenanceItem,
    maintenance_items,
)
from tests.support.tui import NOON, frozen_system

DAY = timedelta(days=1)
UPKEEP = MaintenanceStatus(
    at=NOON,
    config=RecoveryConfig(auto_fail_stale_running=False),
    last_pass_at=NOON - timedelta(seconds=14),
    last_pass_by=None,
    last_retention_at=NOON - timedelta(minutes=41),
)


def _line(known: MaintenanceData, key: str) -> MaintenanceItem:
    return next(
        each for each in maintenance_items(known, NOON) if isinstance(each, MaintenanceItem) and each.key == key
    )


def _cells(chore: MaintenanceItem) -> list[str]:
    return [column.cell(chore, NOON).text for column in MAINTENANCE_COLUMNS]


def test_before_anything_is_known_every_line_is_there_without_numbers() -> None:
    lines = [each for each in maintenance_items(MaintenanceData(), NOON) if isinstance(each, MaintenanceItem)]
    assert [each.command for each in lines] == [MaintenanceCommand.SWEEP] * 4 + [MaintenanceCommand.CLEANUP] * 5
    assert {each.matches for each in lines} == {None}


@pytest.mark.parametrize(("key", "policy"), [("sweep CLAIMED", "auto"), ("sweep RUNNING", "by hand")])
def test_a_line_says_whether_the_workers_do_it_by_themselves(key: str, policy: str) -> None:
    assert _cells(_line(MaintenanceData(maintenance_status=UPKEEP), key))[-1] == policy


def test_without_a_worker_everything_is_done_by_hand() -> None:
    known = MaintenanceData(maintenance_status=replace(UPKEEP, config=None))
    assert _cells(_line(known, "sweep PENDING"))[-1] == "by hand"


def test_tasks_and_whole_workflows_are_counted_together() -> None:
    portions = (
        CategoryCleanup(category=RetentionCategory.TASKS, window=30 * DAY, rows=4, oldest_at=NOON - 31 * DAY),
        CategoryCleanup(category=RetentionCategory.WORKFLOWS, window=30 * DAY, rows=3, oldest_at=NOON - 40 * DAY),
    )
    line = _line(
        MaintenanceData(cleanup=CleanupSummary(categories=portions), maintenance_status=UPKEEP),
        "cleanup terminal records",
    )
    assert (line.matches, line.oldest, line.last_at) == (7, 40 * DAY, UPKEEP.last_retention_at)
    assert line.task_filter is not None
    assert line.task_filter.older_than == 30 * DAY


def test_what_has_no_window_is_kept() -> None:
    known = MaintenanceData(
        cleanup=CleanupSummary(categories=(CategoryCleanup(category=RetentionCategory.AUDIT, window=None),)),
        maintenance_status=UPKEEP,
    )
    assert _cells(_line(known, "cleanup operator log"))[:2] == ["keep operator log", "-"]


async def test_a_cleanup_needs_the_name_of_the_database_and_tells_first_what_goes() -> None:
    source = DemoSource(frozen_system(), read_only=True, pace_s=None)
    proposal = await propose_cleanup(source, database_name="db1/app", now=NOON)
    assert proposal.confirmation_text == "delete db1/app"
    assert [line.is_skipped for line in proposal.lines] == [False] * 4 + [True] * 3
    assert sum(line.count for line in proposal.lines) == 563_711
