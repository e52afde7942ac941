"""What a recovery hook may answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from horsies.model.recovery.decision import Recovery, RecoveryKind

SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "wish"),
    [
        (Recovery.default, RecoveryKind.DEFAULT),
        (Recovery.fail_with_backoff, RecoveryKind.FAIL_WITH_BACKOFF),
        (Recovery.skip, RecoveryKind.SKIP),
    ],
)
def test_each_answer_says_what_is_wished(answer: Callable[[], Recovery], wish: RecoveryKind) -> None:
    assert answer().kind is wish


def test_a_reschedule_keeps_its_instant_and_its_attempts() -> None:
    answer = Recovery.reschedule(SOON, attempts=2)
    assert (answer.kind, answer.run_at, answer.attempts) == (RecoveryKind.RESCHEDULE, SOON, 2)


def test_an_instant_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Recovery.reschedule(SOON.replace(tzinfo=None))


@pytest.mark.parametrize("attempts", [-1, 2**31, 1.5, True, "1"])
def test_attempts_that_are_no_count_are_refused(attempts: Any) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Recovery.reschedule(SOON, attempts=attempts)


@pytest.mark.parametrize(
    "run_at", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), SOON.isoformat(), 7]
)
def test_a_time_that_no_calendar_can_show_everywhere_is_refused(run_at: Any) -> None:
    with pytest.raises(ValueError, match="run_at must be"):
        Recovery.reschedule(run_at)


def test_a_wish_in_ones_own_words_is_refused() -> None:
    with pytest.raises(ValueError, match="create a Recovery with"):
        Recovery(kind=cast("RecoveryKind", "skip"))


def test_an_instant_is_told_in_utc() -> None:
    run_at = Recovery.reschedule(SOON.astimezone(timezone(timedelta(hours=5)))).run_at
    assert (run_at, run_at and run_at.tzinfo) == (SOON, UTC)
