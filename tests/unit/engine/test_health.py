"""What a worker's row says about itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from horsies.engine.heartbeat import Health
from horsies.model.settings import RecoveryConfig

START = datetime(2030, 1, 1, tzinfo=UTC)
BEAT_S = 30.0


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def listening(*beats_s: float, recovery: RecoveryConfig | None = None) -> Health:
    """A worker that has just beaten at these instants of the database."""
    health = Health(recovery=recovery or RecoveryConfig())
    for each in beats_s:
        health.record_heartbeat(at(each), time.monotonic())
    return health


def test_before_its_first_beat_a_worker_claims_nothing() -> None:
    said = listening().document(None)
    assert (said["listening_since"], said["outage_grace_until"], said["last_pass_at"]) == (None, None, None)


def test_an_unbroken_series_is_published_with_the_end_of_its_outage_grace() -> None:
    said = listening(0, 30, 60).document(None)
    assert said["listening_since"] == at(0).isoformat()
    assert said["outage_grace_until"] == at(300).isoformat()


def test_a_gap_begins_a_new_series_and_is_told() -> None:
    health = listening(0, 30)
    assert health.record_heartbeat(at(130), time.monotonic()) == 100
    assert health.document(None)["listening_since"] == at(130).isoformat()


def test_a_clock_set_back_begins_a_new_series() -> None:
    assert listening(0, 30).record_heartbeat(at(-3600), time.monotonic()) == -3630


def test_after_a_pause_of_our_own_nothing_is_claimed_until_a_beat_was_answered() -> None:
    health = listening(0)
    health.record_heartbeat(at(30), time.monotonic() - 2 * BEAT_S)
    assert health.document(None)["listening_since"] is None
    health.record_heartbeat(at(90), time.monotonic())
    assert health.document(None)["listening_since"] == at(90).isoformat()


def test_without_outage_grace_there_is_no_end_of_it() -> None:
    said = listening(0, recovery=RecoveryConfig(outage_grace=False)).document(None)
    assert (said["listening_since"], said["outage_grace_until"]) == (at(0).isoformat(), None)


def test_what_is_wrong_is_listed() -> None:
    health = listening(0)
    health.disabled_jobs["expire pending tasks"] = "no such function"
    said = health.document("the listener lost its connection")
    assert said["listener"] == "degraded"
    assert said["disabled_operations"] == ["expire pending tasks"]
    assert said["warnings"] == ["the listener lost its connection", "expire pending tasks fails: no such function"]
