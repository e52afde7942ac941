"""Answers of recovery hooks (`Recovery`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from horsies.model.retry import Recovery, RecoveryKind

SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Recovery.default, RecoveryKind.DEFAULT),
        (Recovery.fail_with_backoff, RecoveryKind.FAIL_WITH_BACKOFF),
        (Recovery.skip, RecoveryKind.SKIP),
    ],
)
def test_answers_have_their_kind(answer: Callable[[], Recovery], kind: RecoveryKind) -> None:
    assert answer().kind is kind


def test_reschedule_keeps_run_at_and_attempts() -> None:
    answer = Recovery.reschedule(SOON, attempts=2)
    assert (answer.kind, answer.run_at, answer.attempts) == (RecoveryKind.RESCHEDULE, SOON, 2)


def test_naive_run_at_is_rejected() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Recovery.reschedule(SOON.replace(tzinfo=None))


@pytest.mark.parametrize("attempts", [-1, 2**31, 1.5, True, "1"])
def test_invalid_attempts_are_rejected(attempts: Any) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Recovery.reschedule(SOON, attempts=attempts)


@pytest.mark.parametrize(
    "run_at", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), SOON.isoformat(), 7]
)
def test_invalid_run_at_is_rejected(run_at: Any) -> None:
    with pytest.raises(ValueError, match="run_at must be"):
        Recovery.reschedule(run_at)


def test_invalid_kind_is_rejected() -> None:
    with pytest.raises(ValueError, match="create a Recovery with"):
        Recovery(kind=cast("RecoveryKind", "skip"))


def test_run_at_is_converted_to_utc() -> None:
    run_at = Recovery.reschedule(SOON.astimezone(timezone(timedelta(hours=5)))).run_at
    assert (run_at, run_at and run_at.tzinfo) == (SOON, UTC)
