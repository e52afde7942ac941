"""The rules of the doctor: facts to findings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies.model.recovery.fleet import Fleet, FleetMember
from horsies.model.retention import RetentionWindows
from horsies.model.task import short_form
from horsies.store.workers import WaitingTasks
from horsies_ops import doctor as checks
from horsies_ops.doctor import CheckStatus, Diagnosis, Finding, fail, ok, skip, warn
from horsies_ops.reads.server import (
    ConnectionUsage,
    DatabaseStatus,
    MigrationStatus,
    OpenTransaction,
    OutboxStatus,
    TableStorage,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
THRESHOLDS: dict[str, Any] = {
    "claimed_stale_threshold_ms": 120_000,
    "running_stale_threshold_ms": 300_000,
    "worker_stale_threshold_ms": 300_000,
}


def member(*, silent_s: float = 1.0, health: dict[str, object] | None = None, **config: object) -> FleetMember:
    return FleetMember(
        worker_id=uuid4(),
        state="running",
        last_heartbeat_at=NOW - timedelta(seconds=silent_s),
        stored_config=THRESHOLDS | config,
        health=health or {},
    )


def fleet(*members: FleetMember) -> Fleet:
    return Fleet(now=NOW, server_started_at=NOW, members=members)


def outage_grace(seconds: float) -> dict[str, object]:
    return {"outage_grace_until": (NOW + timedelta(seconds=seconds)).isoformat()}


@pytest.mark.parametrize(("used", "status"), [(79, CheckStatus.OK), (80, CheckStatus.WARN), (95, CheckStatus.FAIL)])
def test_many_used_connections_warn_then_fail(used: int, status: CheckStatus) -> None:
    assert checks.connections_finding(ConnectionUsage(used=used, max=100)).status is status


def test_standby_fails() -> None:
    standby = DatabaseStatus(url="postgresql://db/app", embedded=False, reachable=True, in_recovery=True)
    found = checks.database_finding(standby)
    assert (found.status, "standby" in found.detail) == (CheckStatus.FAIL, True)


@pytest.mark.parametrize(
    ("current", "latest", "pending", "checksums_ok", "message"),
    [
        (9, 10, ("0010_retention",), True, "1 pending"),
        (11, 10, (), True, "newer"),
        (10, 10, (), False, "changed"),
    ],
)
def test_pending_newer_or_changed_schema_fails(
    current: int, latest: int, pending: tuple[str, ...], checksums_ok: bool, message: str
) -> None:
    facts = MigrationStatus(current=current, latest=latest, pending=pending, checksums_ok=checksums_ok)
    found = checks.schema_finding(DatabaseStatus(url="", embedded=False, reachable=True, migrations=facts))
    assert (found.status, message in found.detail) == (CheckStatus.FAIL, True)


def test_pooler_needs_a_session_url_and_a_search_path() -> None:
    def finding(*, has_session_url: bool = True, schema: str = "public", path: str = '"$user", public') -> CheckStatus:
        return checks.pooler_finding(has_session_url=has_session_url, schema=schema, path=path).status

    assert finding() is CheckStatus.OK
    assert finding(has_session_url=False) is CheckStatus.FAIL
    assert finding(schema="queue") is CheckStatus.WARN
    assert finding(schema="queue", path='"queue", public') is CheckStatus.OK


def test_slow_round_trip_is_not_reported_as_clock_offset() -> None:
    seconds = timedelta(seconds=1)
    assert checks.clock_finding(-3 * seconds, took=seconds / 10).status is CheckStatus.WARN
    assert checks.clock_finding(-3 * seconds, took=4 * seconds).status is CheckStatus.OK


def test_clock_offset_of_zero_has_no_minus() -> None:
    finding = checks.clock_finding(timedelta(milliseconds=-2), took=timedelta(milliseconds=1))
    assert finding.detail == "+0.0 s from this machine's clock (round trip 1 ms)"


@pytest.mark.parametrize(("minutes", "status"), [(1, CheckStatus.OK), (5, CheckStatus.WARN), (60, CheckStatus.FAIL)])
def test_long_transaction_is_reported_with_its_pid(minutes: int, status: CheckStatus) -> None:
    longest = OpenTransaction(pid=8123, application_name="psql", state="idle", age=timedelta(minutes=minutes))
    found = checks.transaction_finding(longest)
    assert (found.status, "8123" in found.detail) == (status, True)


def test_dead_rows_warn_only_in_large_tables() -> None:
    def table(rows: int, dead_rows: int) -> tuple[TableStorage]:
        return (TableStorage(name="horsies_tasks", bytes=1, rows=rows, dead_rows=dead_rows, last_vacuum_at=None),)

    assert checks.bloat_finding(table(10, 1_000)).status is CheckStatus.OK
    assert checks.bloat_finding(table(100_000, 20_000)).status is CheckStatus.OK
    assert checks.bloat_finding(table(20_000, 20_000)).status is CheckStatus.WARN


@pytest.mark.parametrize(("usage", "status"), [(0.0, CheckStatus.OK), (0.2, CheckStatus.WARN), (0.9, CheckStatus.FAIL)])
def test_full_notify_queue_warns_then_fails(usage: float, status: CheckStatus) -> None:
    assert checks.notify_queue_finding(usage).status is status


def test_missing_stale_or_degraded_workers_warn() -> None:
    assert checks.workers_finding(fleet(member())).status is CheckStatus.OK
    assert checks.workers_finding(fleet()).detail == "0 live"
    assert checks.workers_finding(fleet(member(), member(silent_s=301))).status is CheckStatus.WARN
    assert "cannot start children" in checks.workers_finding(fleet(member(health={"children": "degraded"}))).detail
    assert "receive no" in checks.workers_finding(fleet(member(health={"listener": "degraded"}))).detail


def test_waiting_tasks_that_no_worker_knows_fail() -> None:
    assert checks.unknown_tasks_finding([]).status is CheckStatus.OK
    waiting = WaitingTasks(queue_name="mail", task_name="resize", tasks=7, oldest_at=NOW)
    finding = checks.unknown_tasks_finding([waiting])
    assert (finding.status, finding.detail) == (CheckStatus.FAIL, "no live worker knows: resize (7 in mail)")


def test_silent_worker_is_reported_with_its_last_heartbeat() -> None:
    silent = member(silent_s=91)
    found = checks.workers_finding(
        fleet(
            member(silent_s=90),
            silent,
            member(silent_s=91, runner_heartbeat_interval_ms=60_000, claimer_heartbeat_interval_ms=60_000),
        )
    )
    assert found.status is CheckStatus.WARN
    assert found.detail == f"3 live, {short_form(silent.worker_id)} silent since 11:58:29Z"


def test_different_thresholds_of_live_workers_warn() -> None:
    assert checks.fleet_config_finding(fleet(member(), member())).status is CheckStatus.OK
    differing = checks.fleet_config_finding(fleet(member(), member(running_stale_threshold_ms=60_000)))
    assert (differing.status, "60000, 300000" in differing.detail or "300000, 60000" in differing.detail) == (
        CheckStatus.WARN,
        True,
    )
    assert checks.fleet_config_finding(fleet()).status is CheckStatus.SKIP


def test_outage_grace_of_all_workers_is_ok_and_named() -> None:
    over, active = member(health=outage_grace(-10)), member(health=outage_grace(60))
    assert checks.outage_grace_finding(fleet(over, active)).status is CheckStatus.OK
    all_active = checks.outage_grace_finding(fleet(active, member(health=outage_grace(30))))
    assert (all_active.status, "12:00:30Z" in all_active.detail) == (CheckStatus.OK, True)


def test_disabled_operation_fails() -> None:
    found = checks.disabled_operations_finding(fleet(member(), member(health={"disabled_operations": ["retention"]})))
    assert (found.status, found.detail) == (CheckStatus.FAIL, "failing repeatedly: retention")
    assert checks.disabled_operations_finding(fleet(member())).status is CheckStatus.OK


def test_stale_tasks_fail_only_if_no_worker_recovers_them() -> None:
    def finding(*members: FleetMember, claimed: int = 0, running: int = 0, orphans: int = 0) -> Finding:
        return checks.stale_finding(fleet(*members), claimed=claimed, running=running, orphans=orphans)

    assert finding().status is CheckStatus.OK
    assert finding(member(), orphans=2).status is CheckStatus.WARN
    assert finding(member(silent_s=91), running=1).status is CheckStatus.FAIL
    assert finding(member(auto_fail_stale_running=False), claimed=1).status is CheckStatus.WARN
    not_recovered = finding(member(auto_fail_stale_running=False), running=1)
    assert (not_recovered.status, "auto_fail_stale_running is off" in not_recovered.detail) == (CheckStatus.FAIL, True)
    assert "horsies sweep --dry-run" in (not_recovered.hint or "")


@pytest.mark.parametrize(
    ("waiting", "quarantined", "minutes", "status"),
    [(3, 0, 1, CheckStatus.OK), (3, 0, 10, CheckStatus.WARN), (0, 1, None, CheckStatus.FAIL)],
)
def test_old_outbox_entries_warn_and_quarantined_ones_fail(
    waiting: int, quarantined: int, minutes: int | None, status: CheckStatus
) -> None:
    oldest = None if minutes is None else timedelta(minutes=minutes)
    assert checks.outbox_finding(OutboxStatus(waiting=waiting, quarantined=quarantined, oldest=oldest)).status is status


def test_rows_far_past_their_window_are_overdue() -> None:
    hour = timedelta(hours=1)
    windows = RetentionWindows(terminal_records=24 * hour)
    assert (
        checks.retention_finding({"tasks": 25 * hour, "events": 999 * hour}, windows, 2 * hour).status is CheckStatus.OK
    )
    overdue = checks.retention_finding({"tasks": 27 * hour}, windows, 2 * hour)
    assert (overdue.status, "tasks by 3h00m" in overdue.detail) == (CheckStatus.WARN, True)


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [(ok(""), True), (skip(""), True), (warn("", hint=""), True), (fail("", hint=None), False)],
)
def test_diagnosis_is_ok_unless_a_check_failed(found: Finding, is_ok: bool) -> None:
    assert Diagnosis(checks=(ok(""), found)).is_ok is is_ok
