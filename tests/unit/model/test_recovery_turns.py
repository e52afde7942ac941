"""Which worker of a fleet makes a pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from horsies.model.recovery.fleet import Fleet, FleetMember, PassCandidate, should_run_pass
from horsies.model.settings import RecoveryConfig

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ME, OTHER = UUID(int=1), UUID(int=2)
CONFIG = RecoveryConfig()  # a check every 30 s, a running threshold of 300 s


def ago(seconds: float | None) -> datetime | None:
    return None if seconds is None else NOW - timedelta(seconds=seconds)


def member(
    worker_id: UUID = OTHER, *, seen_s: float = 1, listening_s: float | None = None, passed_s: float | None = None
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


def goes(*others: FleetMember, listening_s: float | None = 1000, config: RecoveryConfig = CONFIG) -> bool:
    candidate = PassCandidate(worker_id=ME, config=config, listening_since=ago(listening_s))
    me = member(ME, listening_s=listening_s, passed_s=1)
    return should_run_pass(candidate, Fleet(now=NOW, server_started_at=NOW, members=(me, *others)))


def test_a_worker_alone_goes_whatever_it_has_heard() -> None:
    assert goes()
    assert goes(listening_s=5)
    assert goes(listening_s=None)


@pytest.mark.parametrize(("passed_s", "is_mine"), [(14, False), (16, True), (None, True)])
def test_a_pass_that_another_made_within_half_an_interval_is_enough(passed_s: float | None, is_mine: bool) -> None:
    assert goes(member(passed_s=passed_s)) is is_mine


def test_a_pass_in_the_future_of_a_clock_that_was_set_back_counts_for_nothing() -> None:
    assert goes(member(passed_s=-3600))


def test_a_pass_of_a_worker_that_is_gone_counts_for_nothing() -> None:
    assert goes(member(seen_s=301, passed_s=5))


@pytest.mark.parametrize("listening_s", [None, 5, 299])
def test_a_new_listener_leaves_it_to_one_who_has_listened_longer(listening_s: float | None) -> None:
    assert not goes(member(listening_s=1000), listening_s=listening_s)


def test_a_listener_of_one_threshold_leaves_it_to_nobody() -> None:
    assert goes(member(listening_s=1000), listening_s=300)


def test_of_two_new_listeners_the_older_goes() -> None:
    assert goes(member(listening_s=5), listening_s=10)
    assert not goes(member(listening_s=10), listening_s=5)


def test_a_series_that_was_broken_by_an_overdue_beat_is_nobodys_longer_one() -> None:
    assert goes(member(seen_s=100, listening_s=1000), listening_s=5)


def test_without_outage_grace_nobody_has_to_have_listened() -> None:
    assert goes(member(listening_s=1000), listening_s=5, config=RecoveryConfig(outage_grace=False))
