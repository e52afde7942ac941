from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.codec import fingerprint
from horsies.codec.fingerprint import format_utc, format_utc_now

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.lists(st.integers(0, 10**10 * 10**6), min_size=1))
def test_format_utc_now_equals_format_utc(micros: list[int]) -> None:
    for each in (*micros, micros[-1] // 10**6 * 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fingerprint.time, "time_ns", lambda: each * 1000 + 999)  # noqa: B023  # called at once
            assert format_utc_now() == format_utc(EPOCH + timedelta(microseconds=each))


def test_other_time_zones_are_formatted_in_utc() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5)))
    assert format_utc(at) == "2026-01-01T22:04:05+00:00"
