"""The fence of a disconnected worker, and heartbeat series."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import (
    Fence,
    child_heartbeat_interval_s,
    heartbeat_timeout_s,
    silent_child_limit_s,
)
from horsies.model.recovery.fleet import HeartbeatSeries
from horsies.model.settings.recovery import RecoveryConfig

DEFAULT = RecoveryConfig()
LIMIT_S = 90.0  # the claimed threshold of 120 s minus one claimer heartbeat interval of 30 s
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def fence() -> Fence:
    return Fence(DEFAULT, now=0.0)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(("now", "is_fenced"), [(0, False), (LIMIT_S, False), (LIMIT_S + 0.1, True)])
def test_worker_is_fenced_one_heartbeat_before_its_claims_are_stale(fence: Fence, now: float, is_fenced: bool) -> None:
    assert fence.is_fenced(now) == is_fenced


def test_successful_statement_keeps_the_fence_down(fence: Fence) -> None:
    fence.record_statement(80.0)

    assert not fence.is_fenced(80.0 + LIMIT_S)


def test_raised_fence_stays_up_until_a_worker_heartbeat(fence: Fence) -> None:
    fence.record_statement(100.0)
    assert fence.is_fenced(100.0)

    fence.record_statement(101.0)
    assert fence.is_fenced(101.0)

    fence.record_heartbeat(101.0)
    assert not fence.is_fenced(101.0)


def test_heartbeat_sent_before_a_suspension_does_not_count(fence: Fence) -> None:
    fence.record_heartbeat(1.0)

    assert fence.is_fenced(500.0)


def test_late_response_does_not_move_time_back(fence: Fence) -> None:
    fence.record_statement(80.0)
    fence.record_heartbeat(10.0)

    assert not fence.is_fenced(80.0 + LIMIT_S)


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=20), st.floats(0, 1_000))
def test_worker_silent_beyond_the_limit_is_always_fenced(successes: list[tuple[float, bool]], silence_s: float) -> None:
    fence, now = Fence(DEFAULT, now=0.0), 0.0
    for pause_s, is_heartbeat in successes:
        now += pause_s
        record = fence.record_heartbeat if is_heartbeat else fence.record_statement
        record(now)

    assert fence.is_fenced(now + LIMIT_S + 0.1 + silence_s)


@pytest.mark.parametrize(("took_s", "is_safe"), [(0, True), (149.9, True), (150, False), (400, False)])
def test_tasks_of_a_slow_claim_are_not_assigned(fence: Fence, took_s: float, is_safe: bool) -> None:
    assert fence.may_assign(took_s=took_s) == is_safe


def test_parent_kills_a_silent_child_before_the_threshold() -> None:
    assert silent_child_limit_s(DEFAULT) == 285.0


@pytest.mark.parametrize(
    ("heartbeats", "since"),
    [
        ([30], 0),
        ([30, 60, 90], 0),
        ([45], 0),
        ([45.1], 45.1),
        ([30, 600, 630], 600),
        ([-1], -1),
        ([30, -3_600, -3_570], -3_600),
        ([30, 3_600], 3_600),
    ],
)
def test_gap_or_clock_jump_starts_a_new_series(heartbeats: list[float], since: float) -> None:
    series = HeartbeatSeries.starting_at(at(0))
    for seconds in heartbeats:
        series = series.after_heartbeat(at(seconds), DEFAULT)

    assert series == HeartbeatSeries(since=at(since), last_heartbeat_at=at(heartbeats[-1]))


def test_allowed_gap_depends_on_the_heartbeat_interval() -> None:
    quick = RecoveryConfig(worker_heartbeat_interval_ms=1_000)

    assert HeartbeatSeries.starting_at(at(0)).after_heartbeat(at(1.5), quick).since == at(0)
    assert HeartbeatSeries.starting_at(at(0)).after_heartbeat(at(1.6), quick).since == at(1.6)


def test_outage_grace_lasts_one_running_threshold() -> None:
    assert HeartbeatSeries(since=at(0), last_heartbeat_at=at(90)).outage_grace_until(DEFAULT) == at(300)


@pytest.mark.parametrize(("threshold_ms", "interval_s"), [(300_000, 1.0), (5_000, 1.0), (2_000, 0.4)])
def test_children_send_several_heartbeats_per_threshold(threshold_ms: int, interval_s: float) -> None:
    assert child_heartbeat_interval_s(RecoveryConfig.unchecked(running_stale_threshold_ms=threshold_ms)) == interval_s


@given(interval_ms=st.integers(1_000, 120_000), factors=st.tuples(*[st.floats(2, 30)] * 3))
def test_every_valid_threshold_leaves_time_for_a_second_heartbeat(
    interval_ms: int, factors: tuple[float, float, float]
) -> None:
    claimed_ms, running_ms, worker_ms = (int(interval_ms * factor) for factor in factors)
    recovery = RecoveryConfig(
        claimer_heartbeat_interval_ms=interval_ms,
        runner_heartbeat_interval_ms=interval_ms,
        claimed_stale_threshold_ms=claimed_ms,
        running_stale_threshold_ms=running_ms,
        worker_stale_threshold_ms=worker_ms,
    )
    first_try_ms = interval_ms + heartbeat_timeout_s(recovery) * 1_000
    assert min(claimed_ms, running_ms, worker_ms) - first_try_ms >= 300


def test_heartbeat_timeout_is_a_third_of_threshold_or_lease() -> None:
    assert heartbeat_timeout_s(DEFAULT) == 40
    assert heartbeat_timeout_s(DEFAULT, claim_lease_ms=60_000) == 20
