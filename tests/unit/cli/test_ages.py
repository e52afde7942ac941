from __future__ import annotations

from datetime import timedelta

import pytest

from horsies.model.text import format_age


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        (None, "-"),
        (timedelta(milliseconds=1840), "1.8s"),
        (timedelta(seconds=41), "41s"),
        (timedelta(minutes=3, seconds=2), "3m02s"),
        (timedelta(hours=26, minutes=5), "1d02h"),
        (-timedelta(seconds=48), "-48s"),
    ],
)
def test_age_has_at_most_two_units(duration: timedelta | None, shown: str) -> None:
    assert format_age(duration) == shown
