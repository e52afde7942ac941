"""What a recovery hook may answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from horsies.model.recovery.answers import Recovery, Wish

if TYPE_CHECKING:
    from collections.abc import Callable

SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "wish"),
    [
        (Recovery.default, Wish.DEFAULT),
        (Recovery.fail_with_backoff, Wish.FAIL_WITH_BACKOFF),
        (Recovery.skip, Wish.SKIP),
    ],
)
def test_each_answer_says_what_is_wished(answer: Callable[[], Recovery], wish: Wish) -> None:
    assert answer().wish is wish


def test_a_reschedule_keeps_its_instant_and_its_attempts() -> None:
    answer = Recovery.reschedule(SOON, attempts=2)
    assert (answer.wish, answer.run_at, answer.attempts) == (Wish.RESCHEDULE, SOON, 2)


def test_an_instant_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Recovery.reschedule(SOON.replace(tzinfo=None))


def test_a_negative_number_of_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Recovery.reschedule(SOON, attempts=-1)
