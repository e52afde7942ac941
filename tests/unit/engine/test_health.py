"""The health document that a worker publishes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from horsies.engine.heartbeat import Health
from horsies.model.settings import RecoveryConfig

START = datetime(2030, 1, 1, tzinfo=UTC)
HEARTBEAT_S = 30.0


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def health_after(*heartbeats_s: float, recovery: RecoveryConfig | None = None) -> Health:
    """The health of a worker whose heartbeats were written at these database times."""
    health = Health(recovery=recovery or RecoveryConfig())
    for seconds in heartbeats_s:
        health.record_heartbeat(at(seconds), time.monotonic())
    return health


def test_nothing_is_published_before_the_first_heartbeat() -> None:
    document = health_after().document()
    assert (document["listening_since"], document["outage_grace_until"], document["last_pass_at"]) == (None, None, None)


def test_unbroken_series_is_published_with_its_outage_grace() -> None:
    document = health_after(0, 30, 60).document()
    assert document["listening_since"] == at(0).isoformat()
    assert document["outage_grace_until"] == at(300).isoformat()


def test_gap_starts_a_new_series_and_is_returned() -> None:
    health = health_after(0, 30)
    assert health.record_heartbeat(at(130), time.monotonic()) == 100
    assert health.document()["listening_since"] == at(130).isoformat()


def test_clock_set_back_starts_a_new_series() -> None:
    assert health_after(0, 30).record_heartbeat(at(-3600), time.monotonic()) == -3630


def test_overdue_heartbeat_hides_the_series_until_the_next_one() -> None:
    health = health_after(0)
    health.record_heartbeat(at(30), time.monotonic() - 2 * HEARTBEAT_S)
    assert health.document()["listening_since"] is None
    health.record_heartbeat(at(90), time.monotonic())
    assert health.document()["listening_since"] == at(90).isoformat()


def test_disabled_outage_grace_has_no_end() -> None:
    document = health_after(0, recovery=RecoveryConfig(outage_grace=False)).document()
    assert (document["listening_since"], document["outage_grace_until"]) == (at(0).isoformat(), None)


def test_problems_are_listed_as_warnings() -> None:
    health = health_after(0)
    health.disabled_jobs["expire pending tasks"] = "no such function"
    health.listener_problem = "the listener lost its connection"
    document = health.document("1 of 2 children cannot be started: killed")
    assert (document["listener"], document["children"]) == ("degraded", "degraded")
    assert document["disabled_operations"] == ["expire pending tasks"]
    assert document["warnings"] == [
        "the listener lost its connection",
        "1 of 2 children cannot be started: killed",
        "expire pending tasks fails: no such function",
    ]
