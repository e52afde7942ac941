"""What the doctor makes of what it sees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies.model.recovery.fleet import Fleet, FleetMember
from horsies.model.retention import RetentionWindows
from horsies.model.task import short_form
from horsies_ops.doctor import checks
from horsies_ops.doctor.findings import CheckResult, CheckStatus, Diagnosis, Finding, fail, ok, skip, warn
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


def seen(*members: FleetMember) -> Fleet:
    return Fleet(now=NOW, server_started_at=NOW, members=members)


def outage_grace(seconds: float) -> dict[str, object]:
    return {"outage_grace_until": (NOW + timedelta(seconds=seconds)).isoformat()}


@pytest.mark.parametrize(("used", "status"), [(79, CheckStatus.OK), (80, CheckStatus.WARN), (95, CheckStatus.FAIL)])
def test_connections_are_to_spare(used: int, status: CheckStatus) -> None:
    assert checks.connections_finding(ConnectionUsage(used=used, max=100)).status is status


def test_a_standby_is_no_database_to_work_on() -> None:
    standby = DatabaseStatus(url="postgresql://db/app", embedded=False, reachable=True, in_recovery=True)
    found = checks.database_finding(standby)
    assert (found.status, "standby" in found.detail) == (CheckStatus.FAIL, True)


@pytest.mark.parametrize(
    ("current", "latest", "pending", "checksums_ok", "says"),
    [
        (9, 10, ("0010_retention",), True, "1 pending"),
        (11, 10, (), True, "newer"),
        (10, 10, (), False, "changed"),
    ],
)
def test_a_schema_that_is_not_ours_is_a_failure(
    current: int, latest: int, pending: tuple[str, ...], checksums_ok: bool, says: str
) -> None:
    facts = MigrationStatus(current=current, latest=latest, pending=pending, checksums_ok=checksums_ok)
    found = checks.schema_finding(DatabaseStatus(url="", embedded=False, reachable=True, migrations=facts))
    assert (found.status, says in found.detail) == (CheckStatus.FAIL, True)


def test_a_pooler_needs_a_way_past_it_and_a_search_path() -> None:
    def judged(*, has_session_url: bool = True, schema: str = "public", path: str = '"$user", public') -> CheckStatus:
        return checks.pooler_finding(has_session_url=has_session_url, schema=schema, path=path).status

    assert judged() is CheckStatus.OK
    assert judged(has_session_url=False) is CheckStatus.FAIL
    assert judged(schema="queue") is CheckStatus.WARN
    assert judged(schema="queue", path='"queue", public') is CheckStatus.OK


def test_a_slow_answer_does_not_look_like_a_wrong_clock() -> None:
    seconds = timedelta(seconds=1)
    assert checks.clock_finding(-3 * seconds, took=seconds / 10).status is CheckStatus.WARN
    assert checks.clock_finding(-3 * seconds, took=4 * seconds).status is CheckStatus.OK


@pytest.mark.parametrize(("minutes", "status"), [(1, CheckStatus.OK), (5, CheckStatus.WARN), (60, CheckStatus.FAIL)])
def test_a_transaction_that_stays_open_is_told_with_its_pid(minutes: int, status: CheckStatus) -> None:
    longest = OpenTransaction(pid=8123, application_name="psql", state="idle", age=timedelta(minutes=minutes))
    found = checks.transaction_finding(longest)
    assert (found.status, "8123" in found.detail) == (status, True)


def test_a_small_table_may_be_mostly_dead() -> None:
    def table(rows: int, dead_rows: int) -> tuple[TableStorage]:
        return (TableStorage(name="horsies_tasks", bytes=1, rows=rows, dead_rows=dead_rows, last_vacuum_at=None),)

    assert checks.bloat_finding(table(10, 1_000)).status is CheckStatus.OK
    assert checks.bloat_finding(table(100_000, 20_000)).status is CheckStatus.OK
    assert checks.bloat_finding(table(20_000, 20_000)).status is CheckStatus.WARN


@pytest.mark.parametrize(("usage", "status"), [(0.0, CheckStatus.OK), (0.2, CheckStatus.WARN), (0.9, CheckStatus.FAIL)])
def test_the_queue_of_notifications_has_room(usage: float, status: CheckStatus) -> None:
    assert checks.notify_queue_finding(usage).status is status


def test_workers_are_live_heard_and_listening() -> None:
    assert checks.workers_finding(seen(member())).status is CheckStatus.OK
    assert checks.workers_finding(seen()).detail == "0 live"
    assert checks.workers_finding(seen(member(), member(silent_s=301))).status is CheckStatus.WARN
    assert "receive no" in checks.workers_finding(seen(member(health={"listener": "degraded"}))).detail


def test_a_worker_that_missed_several_of_its_own_beats_is_named_with_since_when() -> None:
    quiet = member(silent_s=91)
    found = checks.workers_finding(
        seen(
            member(silent_s=90),
            quiet,
            member(silent_s=91, runner_heartbeat_interval_ms=60_000, claimer_heartbeat_interval_ms=60_000),
        )
    )
    assert found.status is CheckStatus.WARN
    assert found.detail == f"2 live, {short_form(quiet.worker_id)} silent since 11:58:29Z"


def test_live_workers_judge_alike() -> None:
    assert checks.fleet_config_finding(seen(member(), member())).status is CheckStatus.OK
    differing = checks.fleet_config_finding(seen(member(), member(running_stale_threshold_ms=60_000)))
    assert (differing.status, "60000, 300000" in differing.detail or "300000, 60000" in differing.detail) == (
        CheckStatus.WARN,
        True,
    )
    assert checks.fleet_config_finding(seen()).status is CheckStatus.SKIP


def test_outage_grace_is_told_only_when_it_holds_back_every_judge() -> None:
    old, new = member(health=outage_grace(-10)), member(health=outage_grace(60))
    assert checks.outage_grace_finding(seen(old, new)).status is CheckStatus.OK
    everyone = checks.outage_grace_finding(seen(new, member(health=outage_grace(30))))
    assert (everyone.status, "12:00:30Z" in everyone.detail) == (CheckStatus.WARN, True)


def test_an_operation_that_keeps_failing_is_a_failure() -> None:
    found = checks.disabled_operations_finding(seen(member(), member(health={"disabled_operations": ["retention"]})))
    assert (found.status, found.detail) == (CheckStatus.FAIL, "failing repeatedly: retention")
    assert checks.disabled_operations_finding(seen(member())).status is CheckStatus.OK


def test_stale_work_is_a_warning_while_a_worker_recovers_it_and_a_failure_where_none_does() -> None:
    def judged(*members: FleetMember, claimed: int = 0, running: int = 0, orphans: int = 0) -> Finding:
        return checks.stale_finding(seen(*members), claimed=claimed, running=running, orphans=orphans)

    assert judged().status is CheckStatus.OK
    assert judged(member(), orphans=2).status is CheckStatus.WARN
    assert judged(member(silent_s=91), running=1).status is CheckStatus.FAIL
    assert judged(member(auto_fail_stale_running=False), claimed=1).status is CheckStatus.WARN
    nobody = judged(member(auto_fail_stale_running=False), running=1)
    assert (nobody.status, "auto_fail_stale_running is off" in nobody.detail) == (CheckStatus.FAIL, True)
    assert "horsies sweep --dry-run" in (nobody.hint or "")


@pytest.mark.parametrize(
    ("waiting", "quarantined", "minutes", "status"),
    [(3, 0, 1, CheckStatus.OK), (3, 0, 10, CheckStatus.WARN), (0, 1, None, CheckStatus.FAIL)],
)
def test_outcomes_do_not_wait_for_long(
    waiting: int, quarantined: int, minutes: int | None, status: CheckStatus
) -> None:
    oldest = None if minutes is None else timedelta(minutes=minutes)
    assert checks.outbox_finding(OutboxStatus(waiting=waiting, quarantined=quarantined, oldest=oldest)).status is status


def test_rows_well_past_their_window_are_overdue() -> None:
    hour = timedelta(hours=1)
    windows = RetentionWindows(terminal_records=24 * hour)
    assert (
        checks.retention_finding({"tasks": 25 * hour, "events": 999 * hour}, windows, 2 * hour).status is CheckStatus.OK
    )
    overdue = checks.retention_finding({"tasks": 27 * hour}, windows, 2 * hour)
    assert (overdue.status, "tasks by 3 hours" in overdue.detail) == (CheckStatus.WARN, True)


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [(ok(""), True), (skip(""), True), (warn("", hint=""), True), (fail("", hint=None), False)],
)
def test_only_a_failure_spoils_the_whole(found: Finding, is_ok: bool) -> None:
    assert Diagnosis(checks=(CheckResult.of("config", ok("")), CheckResult.of("schema", found))).is_ok is is_ok
