"""Which worker runs the next reaper pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from horsies.model.recovery.fleet import Fleet, FleetMember, HeartbeatSeries, WorkerObserver, should_run_pass
from horsies.model.settings import RecoveryConfig

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OWN_ID, OTHER_ID = UUID(int=1), UUID(int=2)
CONFIG = RecoveryConfig()  # a check every 30 s, a running threshold of 300 s


def ago(seconds: float | None) -> datetime | None:
    return None if seconds is None else NOW - timedelta(seconds=seconds)


def member(
    worker_id: UUID = OTHER_ID, *, seen_s: float = 1, listening_s: float | None = None, passed_s: float | None = None
) -> FleetMember:
    since, passed = ago(listening_s), ago(passed_s)
    health = {"listening_since": since and since.isoformat(), "last_pass_at": passed and passed.isoformat()}
    return FleetMember(
        worker_id=worker_id,
        state="running",
        last_heartbeat_at=NOW - timedelta(seconds=seen_s),
        stored_config=CONFIG.model_dump(mode="json"),
        health=health,
    )


def runs_pass(*others: FleetMember, listening_s: float | None = 1000, config: RecoveryConfig = CONFIG) -> bool:
    since = ago(listening_s)
    series = since and HeartbeatSeries(since=since, last_heartbeat_at=NOW)
    candidate = WorkerObserver(worker_id=OWN_ID, config=config, series=series)
    own = member(OWN_ID, listening_s=listening_s, passed_s=1)
    return should_run_pass(candidate, Fleet(now=NOW, server_started_at=NOW, members=(own, *others)))


def test_single_worker_always_runs_the_pass() -> None:
    assert runs_pass()
    assert runs_pass(listening_s=5)
    assert runs_pass(listening_s=None)


@pytest.mark.parametrize(("passed_s", "runs"), [(14, False), (16, True), (None, True)])
def test_pass_is_skipped_after_a_recent_one(passed_s: float | None, runs: bool) -> None:
    assert runs_pass(member(passed_s=passed_s)) is runs


def test_pass_in_the_future_is_ignored() -> None:
    assert runs_pass(member(passed_s=-3600))


def test_pass_of_a_dead_worker_is_ignored() -> None:
    assert runs_pass(member(seen_s=301, passed_s=5))


@pytest.mark.parametrize("listening_s", [None, 5, 299])
def test_worker_in_outage_grace_defers_to_a_longer_series(listening_s: float | None) -> None:
    assert not runs_pass(member(listening_s=1000), listening_s=listening_s)


def test_worker_connected_for_a_threshold_runs_the_pass() -> None:
    assert runs_pass(member(listening_s=1000), listening_s=300)


def test_longer_series_wins_between_two_new_workers() -> None:
    assert runs_pass(member(listening_s=5), listening_s=10)
    assert not runs_pass(member(listening_s=10), listening_s=5)


def test_broken_series_does_not_count() -> None:
    assert runs_pass(member(seen_s=100, listening_s=1000), listening_s=5)


def test_without_outage_grace_series_do_not_matter() -> None:
    assert runs_pass(member(listening_s=1000), listening_s=5, config=RecoveryConfig(outage_grace=False))
