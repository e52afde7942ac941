"""Whose thresholds a sweep goes by, and whose ears."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from horsies.errors import UsageError
from horsies.model.recovery.evidence import Ears
from horsies.model.recovery.judging import Fleet, Judge, OperatorJudge, Ruling, Source, WorkerJudge, ruling
from horsies.model.recovery.options import SweepOptions
from horsies.model.recovery.published import FleetMember
from horsies.model.settings import RecoveryConfig

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STARTED = NOW - timedelta(days=1)
LOCAL = RecoveryConfig(running_stale_threshold_ms=777_000)
BY_HAND, NO_OPTIONS = OperatorJudge(local=LOCAL), SweepOptions()
OFF: dict[str, Any] = {"auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}


def a_worker(*, silent_s: float = 0, listens_s: float = 600, **config: object) -> FleetMember:
    return FleetMember(
        worker_id=uuid4(),
        state="running",
        last_heartbeat_at=NOW - timedelta(seconds=silent_s),
        stored_config=RecoveryConfig(**config).model_dump(mode="json"),  # pyright: ignore[reportArgumentType]
        health={"listening_since": (NOW - timedelta(seconds=listens_s)).isoformat()},
    )


def ruled(
    *members: FleetMember,
    options: SweepOptions = NO_OPTIONS,
    judge: Judge = BY_HAND,
) -> Ruling:
    return ruling(judge, options, Fleet(now=NOW, server_started_at=STARTED, members=members))


def _seconds(ruling: Ruling) -> tuple[float, float]:
    return ruling.policy.claimed_threshold.total_seconds(), ruling.policy.running_threshold.total_seconds()


def test_an_operator_goes_by_the_fleet_and_not_by_local_settings() -> None:
    found = ruled(a_worker(running_stale_threshold_ms=400_000))
    assert (_seconds(found), found.source) == ((120, 400), Source.FLEET)


def test_where_no_worker_lives_local_settings_count() -> None:
    found = ruled(a_worker(silent_s=300))
    assert (_seconds(found), found.source) == ((120, 777), Source.SETTINGS)


def test_the_most_patient_worker_counts_and_disagreement_is_said() -> None:
    found = ruled(a_worker(), a_worker(running_stale_threshold_ms=400_000))
    assert _seconds(found) == (120, 400)
    assert found.warnings == ("workers disagree on recovery.running_stale_threshold_ms: 300000, 400000",)


def test_workers_that_agree_are_no_reason_to_warn() -> None:
    assert ruled(a_worker(), a_worker()).warnings == ()


def test_the_ears_are_those_of_the_worker_that_has_listened_longest() -> None:
    found = ruled(a_worker(listens_s=5), a_worker(listens_s=900), a_worker(listens_s=60))
    assert found.ears == Ears(listening_since=NOW - timedelta(seconds=900))


def test_a_worker_whose_beat_is_overdue_has_not_listened() -> None:
    found = ruled(a_worker(listens_s=900, silent_s=46), a_worker(listens_s=10))
    assert found.ears == Ears(listening_since=NOW - timedelta(seconds=10))


def test_where_nobody_listens_the_start_of_the_server_is_remembered() -> None:
    assert ruled().ears == ruled(a_worker(silent_s=46)).ears == Ears(server_started_at=STARTED)


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
    assert ruled(a_worker(listens_s=1), options=options).ears == Ears()


def test_ages_are_plain_where_the_fleet_knows_no_amnesty() -> None:
    assert ruled(a_worker(listens_s=1, outage_amnesty=False)).ears == Ears()


def test_a_given_threshold_replaces_both_and_the_owners_own() -> None:
    found = ruled(a_worker(), options=SweepOptions(sweep_threshold=timedelta(seconds=90)))
    assert (_seconds(found), found.policy.waits_for_owner, found.source) == ((90, 90), False, Source.OPTIONS)


def test_a_threshold_shorter_than_two_beats_is_refused_unless_forced() -> None:
    hasty = timedelta(seconds=59)
    with pytest.raises(UsageError, match="shorter than two beats"):
        ruled(a_worker(), options=SweepOptions(sweep_threshold=hasty))
    assert _seconds(ruled(a_worker(), options=SweepOptions(sweep_threshold=hasty, force=True))) == (59, 59)
    assert _seconds(ruled(options=SweepOptions(sweep_threshold=hasty))) == (59, 59)


def test_settings_of_the_callers_own_replace_everything() -> None:
    own = RecoveryConfig(running_stale_threshold_ms=61_000, resilient_multiplier=7, resilient_flags=["a"])
    found = ruled(a_worker(), a_worker(max_crashes=3), options=SweepOptions(recovery_config=own))
    policy = found.policy
    assert (policy.resilient_multiplier, policy.resilient_flags, policy.waits_for_owner) == (7, {"a"}, False)
    assert (_seconds(found), found.warnings) == ((120, 61), ())


def test_delay_multiplier_and_flags_are_replaced_one_by_one() -> None:
    options = SweepOptions(recovery_delay=timedelta(seconds=5), resilient_multiplier=9, resilient_flags=["mine"])
    policy = ruled(a_worker(), options=options).policy
    assert (policy.recovery_delay.seconds, policy.resilient_multiplier, policy.resilient_flags) == (5, 9, {"mine"})
    assert policy.waits_for_owner


def test_the_switches_bind_a_reaper_and_never_an_operator() -> None:
    by_hand = ruled(a_worker(**OFF)).policy
    assert (by_hand.requeues_claimed, by_hand.settles_running) == (True, True)
    judge = WorkerJudge(worker_id=UUID(int=1), config=RecoveryConfig(**OFF), listening_since=STARTED)
    reaper = ruled(judge=judge).policy
    assert (reaper.requeues_claimed, reaper.settles_running) == (False, False)


def test_a_reaper_judges_by_its_own_settings_and_ears() -> None:
    judge = WorkerJudge(worker_id=UUID(int=1), config=LOCAL, listening_since=STARTED)
    found = ruled(a_worker(), judge=judge)
    assert (_seconds(found), found.ears) == ((120, 777), Ears(listening_since=STARTED))


def test_a_reaper_that_has_not_listened_yet_condemns_nobody() -> None:
    judge = WorkerJudge(worker_id=UUID(int=1), config=LOCAL, listening_since=None)
    assert ruled(judge=judge).ears == Ears(listening_since=NOW)


@pytest.mark.parametrize("stored", [{}, {"worker_stale_threshold_ms": "soon"}])
def test_a_worker_that_does_not_say_its_settings_is_passed_over(stored: dict[str, object]) -> None:
    silent = FleetMember(worker_id=uuid4(), state="running", last_heartbeat_at=NOW, stored_config=stored, health={})
    assert ruled(silent).source == Source.SETTINGS


@pytest.mark.parametrize(
    "wrong",
    [
        {"sweep_threshold": timedelta(0)},
        {"recovery_delay": timedelta(seconds=-1)},
        {"resilient_multiplier": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, timedelta]) -> None:
    with pytest.raises(ValueError, match="of a sweep must"):
        SweepOptions(**wrong)  # pyright: ignore[reportArgumentType]
