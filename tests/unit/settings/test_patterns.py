"""Validation of schedule patterns."""

from __future__ import annotations

import json
import zoneinfo
from collections.abc import Iterator
from datetime import time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import TaskSchedule
from horsies.model.settings.patterns import parse_pattern


def schedule(**options: Any) -> TaskSchedule:
    return TaskSchedule(name="n", task_name="t", **options)


@pytest.mark.parametrize(
    "pattern",
    [
        {"type": "interval", "seconds": 1},
        {"type": "interval", "seconds": 86_400, "minutes": 1_440, "hours": 168, "days": 365},
        {"type": "hourly", "minute": 0},
        {"type": "hourly", "minute": 59, "second": 59},
        {"type": "daily", "time": "23:59:59"},
        {"type": "daily", "time": time(2, 30)},
        {"type": "weekly", "days": ["monday", "friday"], "time": "02:30"},
        {"type": "monthly", "day": 31, "time": "02:30"},
        {"type": "cron", "expression": "*/5 8-18 * * 1-5"},
        {"type": "cron", "expression": "0,15,30-45/5 0 29 feb sun"},
        {"type": "cron", "expression": "59 23 31 12 7"},
        {"type": "cron", "expression": "0 0 29 2 *"},
        {"type": "cron", "expression": "0 0 31 2 mon"},
    ],
)
def test_valid_patterns_survive_storing(pattern: dict[str, Any]) -> None:
    parsed = schedule(pattern=pattern).pattern
    assert parse_pattern(json.loads(json.dumps(parsed.to_table()))) == parsed
    assert parsed.to_table()["type"] == pattern["type"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({}, "pattern.type must be one of interval, hourly"),
        ({"type": "yearly"}, "pattern.type must be one of"),
        ("* * *", "five fields"),
        ({"type": "interval"}, "at least one of seconds"),
        ({"type": "interval", "seconds": 5, "anchor": "2026-01-01T00:00:00"}, "with a time zone"),
        ({"type": "interval", "seconds": 0}, "from 1 to 86400"),
        ({"type": "interval", "hours": 169}, "from 1 to 168"),
        ({"type": "interval", "secons": 5}, "did you mean seconds"),
        ({"type": "hourly", "minute": 60}, "from 0 to 59"),
        ({"type": "hourly", "second": 5}, "pattern.minute: is required"),
        ({"type": "daily", "time": "24:00"}, "such as 02:30"),
        ({"type": "weekly", "days": [], "time": "02:30"}, "weekdays"),
        ({"type": "weekly", "days": ["monday", "monday"], "time": "02:30"}, "weekdays"),
        ({"type": "monthly", "day": 32, "time": "02:30"}, "from 1 to 31"),
        ({"type": "cron", "expression": "* * *"}, "five fields"),
        ({"type": "cron", "expression": "99 99 * * *"}, "minute 0-59, hour 0-23"),
        ({"type": "cron", "expression": "60 * * * *"}, "minute 0-59"),
        ({"type": "cron", "expression": "* 24 * * *"}, "hour 0-23"),
        ({"type": "cron", "expression": "* * 0 * *"}, "day 1-31"),
        ({"type": "cron", "expression": "* * * 13 *"}, "month 1-12"),
        ({"type": "cron", "expression": "* * * * 8"}, "weekday 0-7"),
        ({"type": "cron", "expression": "*/0 * * * *"}, "five fields"),
        ({"type": "cron", "expression": "5/5 * * * *"}, "five fields"),
        ({"type": "cron", "expression": "0,5/5 * * * *"}, "five fields"),
        ({"type": "cron", "expression": "0 0 12 * * *"}, "five fields"),
        ({"type": "cron", "expression": "9" * 5000 + " * * * *"}, "five fields"),
        ({"type": "cron", "expression": "9-5 * * * *"}, "five fields"),
        ({"type": "cron", "expression": "1,,2 * * * *"}, "five fields"),
        ({"type": "cron", "expression": "* * * * fri-sun"}, "five fields"),
        ({"type": "cron", "expression": "0 0 31 2,4 *"}, r"match some date.*, got '0 0 31 2,4 \*'"),
    ],
)
def test_invalid_patterns_are_rejected(pattern: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        schedule(pattern=pattern)
    assert caught.value.code is ErrorCode.CONFIG_INVALID_SCHEDULE


@pytest.fixture
def no_zone_data() -> Iterator[None]:
    zoneinfo.reset_tzpath(to=())
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_zone_data")
def test_utc_needs_no_zone_data() -> None:
    pattern = {"type": "hourly", "minute": 5}
    assert schedule(pattern=pattern, timezone="UTC").timezone == "UTC"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_unknown_time_zone_is_rejected(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="IANA"):
        schedule(pattern={"type": "hourly", "minute": 5}, timezone=zone)
