"""Whose thresholds a sweep goes by, and whose ears."""

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
LOCAL = RecoveryConfig(running_stale_threshold_ms=777_000)
BY_HAND, NO_OPTIONS = OperatorObserver(local_config=LOCAL), SweepOptions()
OFF: dict[str, Any] = {"auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}


def a_worker(*, state: str = "running", silent_s: float = 0, listens_s: float = 600, **config: object) -> FleetMember:
    return FleetMember(
        worker_id=uuid4(),
        state=state,
        last_heartbeat_at=NOW - timedelta(seconds=silent_s),
        stored_config=RecoveryConfig(**config).model_dump(mode="json"),  # pyright: ignore[reportArgumentType]
        health={"listening_since": (NOW - timedelta(seconds=listens_s)).isoformat()},
    )


def ruled(
    *members: FleetMember,
    options: SweepOptions = NO_OPTIONS,
    judge: Observer = BY_HAND,
) -> EffectivePolicy:
    return effective_policy(judge, options, Fleet(now=NOW, server_started_at=STARTED, members=members))


def _seconds(ruling: EffectivePolicy) -> tuple[float, float]:
    return ruling.policy.claimed_threshold.total_seconds(), ruling.policy.running_threshold.total_seconds()


def test_an_operator_goes_by_the_fleet_and_not_by_local_settings() -> None:
    found = ruled(a_worker(running_stale_threshold_ms=400_000))
    assert (_seconds(found), found.source) == ((120, 400), ThresholdSource.FLEET)


def test_where_no_worker_lives_local_settings_count() -> None:
    found = ruled(a_worker(silent_s=300))
    assert (_seconds(found), found.source) == ((120, 777), ThresholdSource.SETTINGS)


def test_the_most_patient_worker_counts_and_disagreement_is_said() -> None:
    found = ruled(a_worker(), a_worker(running_stale_threshold_ms=400_000))
    assert _seconds(found) == (120, 400)
    assert found.warnings == ("workers disagree on recovery.running_stale_threshold_ms: 300000, 400000",)


def test_workers_that_agree_are_no_reason_to_warn() -> None:
    assert ruled(a_worker(), a_worker()).warnings == ()


def test_the_ears_are_those_of_the_worker_that_has_listened_longest() -> None:
    found = ruled(a_worker(listens_s=5), a_worker(listens_s=900), a_worker(listens_s=60))
    assert found.listening == ListeningWindow(listening_since=NOW - timedelta(seconds=900))


def test_a_worker_whose_beat_is_overdue_has_not_listened() -> None:
    found = ruled(a_worker(listens_s=900, silent_s=46), a_worker(listens_s=10))
    assert found.listening == ListeningWindow(listening_since=NOW - timedelta(seconds=10))


@pytest.mark.parametrize("gone", [{"silent_s": 300}, {"state": "starting"}], ids=["dead", "not yet at work"])
def test_where_nobody_lives_the_start_of_the_server_is_remembered(gone: dict[str, Any]) -> None:
    assert ruled().listening == ruled(a_worker(**gone)).listening == ListeningWindow(server_started_at=STARTED)


def test_live_workers_that_all_missed_a_beat_have_heard_nothing_until_they_count_as_dead() -> None:
    found = ruled(a_worker(listens_s=900, silent_s=46), a_worker(listens_s=900, silent_s=299))
    assert found.listening == ListeningWindow(listening_since=NOW, blind_until=NOW + timedelta(seconds=254))


def test_a_worker_that_beat_in_the_future_of_a_clock_that_was_set_back_has_not_listened() -> None:
    assert ruled(a_worker(silent_s=-60)).listening.listening_since == NOW


@pytest.mark.parametrize(
    "options",
    [
        SweepOptions(sweep_threshold=timedelta(minutes=5)),
        SweepOptions(force=True),
        SweepOptions(recovery_config=RecoveryConfig()),
    ],
    ids=["a threshold", "force", "settings of its own"],
)
def test_ages_are_plain_with(options: SweepOptions) -> None:
    assert ruled(a_worker(listens_s=1), options=options).listening == ListeningWindow()


def test_ages_are_plain_where_the_fleet_knows_no_outage_grace() -> None:
    assert ruled(a_worker(listens_s=1, outage_grace=False)).listening == ListeningWindow()


def test_a_given_threshold_replaces_both_and_the_owners_own() -> None:
    found = ruled(a_worker(), options=SweepOptions(sweep_threshold=timedelta(seconds=90)))
    assert (_seconds(found), found.policy.honors_owner_thresholds, found.source) == (
        (90, 90),
        False,
        ThresholdSource.OPTIONS,
    )


def test_a_threshold_shorter_than_two_beats_is_refused_unless_forced() -> None:
    hasty = timedelta(seconds=59)
    with pytest.raises(UsageError, match="shorter than two heartbeat intervals"):
        ruled(a_worker(), options=SweepOptions(sweep_threshold=hasty))
    assert _seconds(ruled(a_worker(), options=SweepOptions(sweep_threshold=hasty, force=True))) == (59, 59)
    assert _seconds(ruled(options=SweepOptions(sweep_threshold=hasty))) == (59, 59)


def test_settings_of_the_callers_own_replace_everything() -> None:
    own = RecoveryConfig(running_stale_threshold_ms=61_000, resilient_multiplier=7, resilient_flags=["a"])
    found = ruled(a_worker(), a_worker(max_crashes=3), options=SweepOptions(recovery_config=own))
    policy = found.policy
    assert (policy.resilient_multiplier, policy.resilient_flags, policy.honors_owner_thresholds) == (7, {"a"}, False)
    assert (_seconds(found), found.warnings) == ((120, 61), ())


def test_delay_multiplier_and_flags_are_replaced_one_by_one() -> None:
    options = SweepOptions(recovery_delay=timedelta(seconds=5), resilient_multiplier=9, resilient_flags=["mine"])
    policy = ruled(a_worker(), options=options).policy
    assert (policy.recovery_delay.seconds, policy.resilient_multiplier, policy.resilient_flags) == (5, 9, {"mine"})
    assert policy.honors_owner_thresholds


def test_the_switches_bind_a_reaper_and_never_an_operator() -> None:
    by_hand = ruled(a_worker(**OFF)).policy
    assert (by_hand.recovers_claimed, by_hand.recovers_running) == (True, True)
    judge = WorkerObserver(worker_id=UUID(int=1), config=RecoveryConfig(**OFF), listening_since=STARTED)
    reaper = ruled(judge=judge).policy
    assert (reaper.recovers_claimed, reaper.recovers_running) == (False, False)


def test_a_reaper_judges_by_its_own_settings_and_ears() -> None:
    judge = WorkerObserver(worker_id=UUID(int=1), config=LOCAL, listening_since=STARTED)
    found = ruled(a_worker(), judge=judge)
    assert (_seconds(found), found.listening) == ((120, 777), ListeningWindow(listening_since=STARTED))


def test_a_reaper_that_has_not_listened_yet_condemns_nobody() -> None:
    judge = WorkerObserver(worker_id=UUID(int=1), config=LOCAL, listening_since=None)
    assert ruled(judge=judge).listening == ListeningWindow(listening_since=NOW)


ODD: list[dict[str, object]] = [
    {},
    {"worker_stale_threshold_ms": "soon"},
    {"recovery_delay_ms": None},
    {"recovery_delay_ms": -1},
    {"running_stale_threshold_ms": 10**30},
    {"resilient_multiplier": 0},
    {"resilient_flags": [1]},
    {"max_crashes": True},
    {"outage_grace": "no"},
    {"unheard_of": 1},
]


@pytest.mark.parametrize("stored", ODD, ids=str)
def test_settings_that_a_row_leaves_out_or_that_make_no_sense_are_the_defaults(stored: dict[str, object]) -> None:
    odd = FleetMember(worker_id=uuid4(), state="running", last_heartbeat_at=NOW, stored_config=stored, health={})
    assert odd.config == RecoveryConfig()
    assert ruled(odd, a_worker()).warnings == ()


def test_settings_may_be_none_where_that_means_something() -> None:
    assert a_worker(heartbeat_retention_hours=None).config.heartbeat_retention_hours is None


@pytest.mark.parametrize("since", ["2026-01-01T11:00:00", "yesterday", 7, None])
def test_a_worker_that_does_not_say_since_when_it_listens_has_not(since: object) -> None:
    odd = replace(a_worker(), health={"listening_since": since, "last_pass_at": since})
    assert ruled(odd).listening.listening_since == NOW
    assert ruled(odd, a_worker(listens_s=10)).listening.listening_since == NOW - timedelta(seconds=10)


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
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        SweepOptions(**wrong)
