"""Which thresholds and which listening window a sweep uses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from horsies.errors import UsageError
from horsies.model.recovery.decision import ListeningWindow
from horsies.model.recovery.fleet import (
    EffectivePolicy,
    Fleet,
    FleetMember,
    HeartbeatSeries,
    Observer,
    OperatorObserver,
    SweepOptions,
    ThresholdSource,
    WorkerObserver,
    effective_policy,
)
from horsies.model.settings import RecoveryConfig

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STARTED = NOW - timedelta(days=1)
SERIES = HeartbeatSeries(since=STARTED, last_heartbeat_at=NOW)
LOCAL = RecoveryConfig(running_stale_threshold_ms=777_000)
OPERATOR, NO_OPTIONS = OperatorObserver(local_config=LOCAL), SweepOptions()
OFF: dict[str, Any] = {"auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}


def make_worker(
    *, state: str = "running", silent_s: float = 0, listening_s: float = 600, **config: object
) -> FleetMember:
    return FleetMember(
        worker_id=uuid4(),
        state=state,
        last_heartbeat_at=NOW - timedelta(seconds=silent_s),
        stored_config=RecoveryConfig(**config).model_dump(mode="json"),  # pyright: ignore[reportArgumentType]
        health={"listening_since": (NOW - timedelta(seconds=listening_s)).isoformat()},
    )


def policy_for(
    *members: FleetMember,
    options: SweepOptions = NO_OPTIONS,
    observer: Observer = OPERATOR,
) -> EffectivePolicy:
    return effective_policy(observer, options, Fleet(now=NOW, server_started_at=STARTED, members=members))


def _seconds(policy: EffectivePolicy) -> tuple[float, float]:
    return policy.policy.claimed_threshold.total_seconds(), policy.policy.running_threshold.total_seconds()


def test_manual_sweep_uses_the_fleets_settings() -> None:
    found = policy_for(make_worker(running_stale_threshold_ms=400_000))
    assert (_seconds(found), found.source) == ((120, 400), ThresholdSource.FLEET)


def test_local_settings_apply_without_live_workers() -> None:
    found = policy_for(make_worker(silent_s=300))
    assert (_seconds(found), found.source) == ((120, 777), ThresholdSource.SETTINGS)


def test_longest_thresholds_win_and_mismatch_is_a_warning() -> None:
    found = policy_for(make_worker(), make_worker(running_stale_threshold_ms=400_000))
    assert _seconds(found) == (120, 400)
    assert found.warnings == ("workers disagree on recovery.running_stale_threshold_ms: 300000, 400000",)


def test_no_warning_if_settings_agree() -> None:
    assert policy_for(make_worker(), make_worker()).warnings == ()


def test_window_of_the_longest_series_is_used() -> None:
    found = policy_for(make_worker(listening_s=5), make_worker(listening_s=900), make_worker(listening_s=60))
    since, until = NOW - timedelta(seconds=900), NOW + timedelta(seconds=45)
    assert found.listening == ListeningWindow(listening_since=since, listening_until=until)


def test_worker_with_an_overdue_heartbeat_is_ignored() -> None:
    found = policy_for(make_worker(listening_s=900, silent_s=46), make_worker(listening_s=10))
    assert found.listening.listening_since == NOW - timedelta(seconds=10)


@pytest.mark.parametrize("worker", [{"silent_s": 300}, {"state": "starting"}], ids=["dead", "starting"])
def test_server_start_is_used_without_live_workers(worker: dict[str, Any]) -> None:
    assert (
        policy_for().listening
        == policy_for(make_worker(**worker)).listening
        == ListeningWindow(server_started_at=STARTED)
    )


def test_observer_is_blind_if_all_workers_missed_a_heartbeat() -> None:
    found = policy_for(make_worker(listening_s=900, silent_s=46), make_worker(listening_s=900, silent_s=299))
    blind_until = NOW + timedelta(seconds=254)
    assert found.listening == ListeningWindow(listening_since=NOW, listening_until=NOW, blind_until=blind_until)


def test_heartbeat_in_the_future_is_ignored() -> None:
    assert policy_for(make_worker(silent_s=-60)).listening.listening_since == NOW


@pytest.mark.parametrize(
    "options",
    [
        SweepOptions(sweep_threshold=timedelta(minutes=5)),
        SweepOptions(force=True),
        SweepOptions(recovery_config=RecoveryConfig()),
    ],
    ids=["sweep_threshold", "force", "recovery_config"],
)
def test_options_that_disable_outage_grace(options: SweepOptions) -> None:
    assert policy_for(make_worker(listening_s=1), options=options).listening == ListeningWindow()


def test_fleet_setting_disables_outage_grace() -> None:
    assert policy_for(make_worker(listening_s=1, outage_grace=False)).listening == ListeningWindow()


def test_sweep_threshold_overrides_all_thresholds() -> None:
    found = policy_for(make_worker(), options=SweepOptions(sweep_threshold=timedelta(seconds=90)))
    assert (_seconds(found), found.policy.honors_owner_thresholds, found.source) == (
        (90, 90),
        False,
        ThresholdSource.OPTIONS,
    )


def test_threshold_below_two_heartbeats_needs_force() -> None:
    short = timedelta(seconds=59)
    with pytest.raises(UsageError, match="shorter than two heartbeat intervals"):
        policy_for(make_worker(), options=SweepOptions(sweep_threshold=short))
    assert _seconds(policy_for(make_worker(), options=SweepOptions(sweep_threshold=short, force=True))) == (59, 59)
    assert _seconds(policy_for(options=SweepOptions(sweep_threshold=short))) == (59, 59)


def test_recovery_config_overrides_the_fleet() -> None:
    own = RecoveryConfig(running_stale_threshold_ms=61_000, resilient_multiplier=7, resilient_flags=["a"])
    found = policy_for(make_worker(), make_worker(max_crashes=3), options=SweepOptions(recovery_config=own))
    policy = found.policy
    assert (policy.resilient_multiplier, policy.resilient_flags, policy.honors_owner_thresholds) == (7, {"a"}, False)
    assert (_seconds(found), found.warnings) == ((120, 61), ())


def test_options_override_single_settings() -> None:
    options = SweepOptions(recovery_delay=timedelta(seconds=5), resilient_multiplier=9, resilient_flags=["mine"])
    policy = policy_for(make_worker(), options=options).policy
    assert (policy.recovery_delay.seconds, policy.resilient_multiplier, policy.resilient_flags) == (5, 9, {"mine"})
    assert policy.honors_owner_thresholds


def test_auto_switches_apply_to_the_reaper_only() -> None:
    manual = policy_for(make_worker(**OFF)).policy
    assert (manual.recovers_claimed, manual.recovers_running) == (True, True)
    observer = WorkerObserver(worker_id=UUID(int=1), config=RecoveryConfig(**OFF), series=SERIES)
    reaper = policy_for(observer=observer).policy
    assert (reaper.recovers_claimed, reaper.recovers_running) == (False, False)


def test_reaper_uses_its_own_settings_and_window() -> None:
    observer = WorkerObserver(worker_id=UUID(int=1), config=LOCAL, series=SERIES)
    found = policy_for(make_worker(), observer=observer)
    window = ListeningWindow(listening_since=STARTED, listening_until=NOW + timedelta(seconds=45))
    assert (_seconds(found), found.listening) == ((120, 777), window)


def test_reaper_without_heartbeats_marks_nothing_stale() -> None:
    observer = WorkerObserver(worker_id=UUID(int=1), config=LOCAL, series=None)
    assert policy_for(observer=observer).listening.listening_since == NOW


INVALID_CONFIGS: list[dict[str, object]] = [
    {},
    {"worker_stale_threshold_ms": "soon"},
    {"recovery_delay_ms": None},
    {"recovery_delay_ms": -1},
    {"running_stale_threshold_ms": 10**30},
    {"resilient_multiplier": 0},
    {"resilient_flags": [1]},
    {"max_crashes": True},
    {"outage_grace": "no"},
    {"unknown_setting": 1},
]


@pytest.mark.parametrize("stored", INVALID_CONFIGS, ids=str)
def test_missing_or_invalid_published_settings_are_defaults(stored: dict[str, object]) -> None:
    member = FleetMember(worker_id=uuid4(), state="running", last_heartbeat_at=NOW, stored_config=stored, health={})
    assert member.config == RecoveryConfig()
    assert policy_for(member, make_worker()).warnings == ()


def test_published_none_is_kept_where_allowed() -> None:
    assert make_worker(heartbeat_retention_hours=None).config.heartbeat_retention_hours is None


@pytest.mark.parametrize("since", ["2026-01-01T11:00:00", "yesterday", 7, None])
def test_invalid_listening_since_is_ignored(since: object) -> None:
    member = replace(make_worker(), health={"listening_since": since, "last_pass_at": since})
    assert policy_for(member).listening.listening_since == NOW
    assert policy_for(member, make_worker(listening_s=10)).listening.listening_since == NOW - timedelta(seconds=10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sweep_threshold": timedelta(0)},
        {"sweep_threshold": timedelta.max},
        {"sweep_threshold": "x"},
        {"sweep_threshold": 5},
        {"recovery_delay": timedelta(seconds=-1)},
        {"recovery_delay": timedelta.max},
        {"resilient_multiplier": 0},
        {"resilient_multiplier": 10**20},
        {"resilient_multiplier": 1.5},
        {"resilient_flags": "flag"},
        {"resilient_flags": [1]},
    ],
    ids=str,
)
def test_invalid_options_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        SweepOptions(**wrong)
