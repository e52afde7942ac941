from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from horsies.model.retention import CategoryCleanup, CleanupSummary, RetentionCategory
from horsies.model.settings import RecoveryConfig
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.proposals.sweep import propose_cleanup
from horsies_tui.screens.maintenance import (
    MAINTENANCE_COLUMNS,
    MaintenanceCommand,
    MaintenanceData,
    MaintenanceItem,
    maintenance_items,
)
from tests.support.fake_system.source import FakeSource
from tests.support.tui import NOON, frozen_system

DAY = timedelta(days=1)
STATUS = MaintenanceStatus(
    at=NOON,
    config=RecoveryConfig(auto_fail_stale_running=False),
    last_pass_at=NOON - timedelta(seconds=14),
    last_pass_by=None,
    last_retention_at=NOON - timedelta(minutes=41),
)


def _item(data: MaintenanceData, key: str) -> MaintenanceItem:
    return next(item for item in maintenance_items(data, NOON) if isinstance(item, MaintenanceItem) and item.key == key)


def _cells(item: MaintenanceItem) -> list[str]:
    return [column.cell(item, NOON).text for column in MAINTENANCE_COLUMNS]


def test_all_items_are_listed_before_any_result() -> None:
    items = [item for item in maintenance_items(MaintenanceData(), NOON) if isinstance(item, MaintenanceItem)]
    assert [item.command for item in items] == [MaintenanceCommand.SWEEP] * 4 + [MaintenanceCommand.CLEANUP] * 5
    assert {item.matches for item in items} == {None}


@pytest.mark.parametrize(("key", "policy"), [("sweep CLAIMED", "auto"), ("sweep RUNNING", "manual")])
def test_policy_shows_whether_workers_do_it(key: str, policy: str) -> None:
    assert _cells(_item(MaintenanceData(maintenance_status=STATUS), key))[-1] == policy


def test_policy_is_manual_without_workers() -> None:
    data = MaintenanceData(maintenance_status=replace(STATUS, config=None))
    assert _cells(_item(data, "sweep PENDING"))[-1] == "manual"


def test_tasks_and_workflows_share_one_retention_item() -> None:
    counts = (
        CategoryCleanup(category=RetentionCategory.TASKS, window=30 * DAY, rows=4, oldest_at=NOON - 31 * DAY),
        CategoryCleanup(category=RetentionCategory.WORKFLOWS, window=30 * DAY, rows=3, oldest_at=NOON - 40 * DAY),
    )
    item = _item(
        MaintenanceData(cleanup=CleanupSummary(categories=counts), maintenance_status=STATUS),
        "cleanup terminal records",
    )
    assert (item.matches, item.oldest, item.last_at) == (7, 40 * DAY, STATUS.last_retention_at)
    assert item.task_filter is not None
    assert item.task_filter.older_than == 30 * DAY


def test_category_without_window_is_kept() -> None:
    data = MaintenanceData(
        cleanup=CleanupSummary(categories=(CategoryCleanup(category=RetentionCategory.AUDIT, window=None),)),
        maintenance_status=STATUS,
    )
    assert _cells(_item(data, "cleanup operator log"))[:2] == ["keep operator log", "-"]


async def test_cleanup_preview_requires_database_name() -> None:
    source = FakeSource(frozen_system(), read_only=True)
    proposal = await propose_cleanup(source, database_name="db1/app", now=NOON)
    assert proposal.confirmation_text == "delete db1/app"
    assert [line.is_skipped for line in proposal.lines] == [False] * 4 + [True] * 4
    assert sum(line.count for line in proposal.lines) == 563_711
