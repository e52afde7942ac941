from __future__ import annotations

from datetime import timedelta

import pytest

from horsies_ops.cli.output import format_age


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
def test_an_age_is_told_in_two_units_at_most(duration: timedelta | None, shown: str) -> None:
    assert format_age(duration) == shown
