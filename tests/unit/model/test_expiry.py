from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from horsies.model.retry import has_expired
from horsies.model.task import check_good_until, expired_error
from horsies.model.task_result import OutcomeCode

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("ahead_ms", "expected"), [(1, False), (0, True), (-1, True)])
def test_task_expires_exactly_at_good_until(ahead_ms: int, expected: bool) -> None:
    assert has_expired(NOW + timedelta(milliseconds=ahead_ms), NOW) is expected


def test_task_without_good_until_never_expires() -> None:
    assert not has_expired(None, NOW)


def test_naive_good_until_is_rejected_but_a_past_one_allowed() -> None:
    with pytest.raises(ValueError, match="time zone"):
        check_good_until(datetime(2026, 1, 1))  # noqa: DTZ001 - tests a naive datetime
    check_good_until(NOW - timedelta(days=900))


@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_extreme_times_are_rejected_in_every_time_zone(hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    for edge in (datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)):
        with pytest.raises(ValueError, match="must be between"):
            check_good_until(edge)


def test_expired_error_names_the_worker() -> None:
    error = expired_error(task_id="t", worker_id="w", good_until=NOW)

    assert error.error_code is OutcomeCode.TASK_EXPIRED
    assert error.data == {"task_id": "t", "worker_id": "w"}
