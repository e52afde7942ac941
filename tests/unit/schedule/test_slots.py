"""Slot times, compared with a walk over every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from horsies import (
    BothDays,
    CronEnumValues,
    CronRange,
    CronSchedule,
    CronStep,
    CronValues,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    SchedulePattern,
    Weekday,
    WeeklySchedule,
)
from horsies.model.schedule.slots import next_slot, slots_from, times_in_gaps
from horsies.model.settings.patterns import DstGap, load_zone, parse_cron

VIENNA, LORD_HOWE = "Europe/Vienna", "Australia/Lord_Howe"
MINUTE = timedelta(minutes=1)
ZONES = sorted(available_timezones())
TIMES = st.builds(time, st.integers(0, 23), st.integers(0, 59))
DAYS = st.lists(st.sampled_from(list(Weekday)), min_size=1, max_size=4, unique=True)
CRON = st.sampled_from(
    ["* * * * *", "*/15 * * * *", "30 * * * *", "*/20 1-3 * * *", "0,30 0-6 * * *", "15 2 * * sun", "45 23 28-31 * *"]
)
PATTERNS = st.one_of(
    st.builds(DailySchedule, time=TIMES),
    st.builds(WeeklySchedule, days=DAYS, time=TIMES),
    st.builds(MonthlySchedule, day=st.integers(1, 31), time=TIMES),
    st.builds(HourlySchedule, minute=st.integers(0, 59)),
    st.builds(CronSchedule.parse, CRON),
)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


def matches(pattern: SchedulePattern, local: datetime) -> bool:
    """Whether a pattern matches a local minute; written independently of the code under test."""
    match pattern:
        case HourlySchedule():
            return local.minute == pattern.minute
        case DailySchedule():
            return local.time() == pattern.time
        case WeeklySchedule():
            return local.time() == pattern.time and local.weekday() in pattern.days
        case MonthlySchedule():
            return local.time() == pattern.time and local.day == pattern.day
        case CronSchedule():
            cron = parse_cron(pattern.expression)
            assert cron is not None
            is_day = local.month in cron.months and cron.match_day(local.date())
            return is_day and local.hour in cron.hours and local.minute in cron.minutes
        case _:
            raise AssertionError(pattern)


def walk(pattern: SchedulePattern, zone: ZoneInfo, after: datetime, minutes: int, gap: DstGap) -> Iterator[datetime]:
    """Yield the slots after `after` by looking at every minute; offsets must be whole minutes."""
    is_elapsed = isinstance(pattern, HourlySchedule) or (
        isinstance(pattern, CronSchedule) and pattern.expression.split()[1] == "*"
    )
    start = after.replace(second=0, microsecond=0)
    before = start.astimezone(zone).replace(tzinfo=None)
    for n in range(1, minutes + 1):
        at = start + n * MINUTE
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        left_out = (before + k * MINUTE for k in range(1, int((wall - before) / MINUTE)))
        shifted = gap == "shift" and not is_elapsed and any(matches(pattern, each) for each in left_out)
        before = wall
        if shifted or (matches(pattern, wall) and (is_elapsed or local.fold == 0)):
            yield at


def change_near(zone: ZoneInfo, start: datetime) -> datetime | None:
    """The next change of the zone's offset within 400 days, to the hour."""
    offset = start.astimezone(zone).utcoffset()
    for day in range(400):
        if (start + timedelta(days=day)).astimezone(zone).utcoffset() != offset:
            return start + timedelta(days=day - 1)
    return None


@settings(max_examples=150, deadline=None)
@given(
    pattern=PATTERNS,
    zone_name=st.sampled_from(ZONES),
    start=st.datetimes(datetime(1973, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    offset=st.integers(0, 2 * 1440),
    gap=st.sampled_from(["skip", "shift"]),
)
def test_slots_equal_a_walk_over_all_minutes(
    pattern: SchedulePattern, zone_name: str, start: datetime, offset: int, gap: DstGap
) -> None:
    zone = load_zone(zone_name)
    start = (change_near(zone, start) or start) + offset * MINUTE
    minutes = 2 * 1440
    span = (start + n * MINUTE for n in (0, minutes))
    assume(all((at.astimezone(zone).utcoffset() or timedelta()) % MINUTE == timedelta() for at in span))
    expected = list(walk(pattern, zone, start, minutes, gap))
    end = start.replace(second=0, microsecond=0) + minutes * MINUTE
    found: list[datetime] = []
    slot = next_slot(pattern, zone, start, dst_gap=gap)
    while slot is not None and slot <= end:
        found.append(slot)
        slot = next_slot(pattern, zone, slot, dst_gap=gap)
    assert found == expected


def take(pattern: SchedulePattern, zone: str, after: datetime, count: int, gap: DstGap = "skip") -> list[str]:
    first = next_slot(pattern, load_zone(zone), after, dst_gap=gap)
    assert first is not None
    slots = slots_from(pattern, load_zone(zone), first, dst_gap=gap)
    return [f"{next(slots).astimezone(load_zone(zone)):%d %H:%M%z}" for _ in range(count)]


AT_2_30 = DailySchedule(time=time(2, 30))
HALF_PAST = HourlySchedule(minute=30)


@pytest.mark.parametrize(
    ("zone", "pattern", "day_before", "skipped", "shifted"),
    [
        (VIENNA, AT_2_30, utc(2026, 3, 28, 12), "30 02:30+0200", "29 03:00+0200"),
        ("America/New_York", AT_2_30, utc(2026, 3, 7, 12), "09 02:30-0400", "08 03:00-0400"),
        (LORD_HOWE, DailySchedule(time=time(2, 15)), utc(2026, 10, 3, 0), "05 02:15+1100", "04 02:30+1100"),
        ("Africa/Casablanca", AT_2_30, utc(2026, 3, 21, 12), "23 02:30+0100", "22 03:00+0100"),
    ],
)
def test_time_in_a_gap_is_skipped_or_shifted(
    zone: str, pattern: SchedulePattern, day_before: datetime, skipped: str, shifted: str
) -> None:
    assert take(pattern, zone, day_before, 1) == [skipped]
    assert take(pattern, zone, day_before, 1, "shift") == [shifted]


@pytest.mark.parametrize(
    ("zone", "pattern", "before", "expected"),
    [
        (VIENNA, AT_2_30, utc(2026, 10, 24, 12), ["25 02:30+0200", "26 02:30+0100"]),
        (VIENNA, HALF_PAST, utc(2026, 10, 24, 23, 45), ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
        ("America/New_York", DailySchedule(time=time(1, 30)), utc(2026, 11, 1, 0), ["01 01:30-0400", "02 01:30-0500"]),
        (
            "Australia/Lord_Howe",
            DailySchedule(time=time(1, 45)),
            utc(2026, 4, 4, 0),
            ["05 01:45+1100", "06 01:45+1030"],
        ),
        ("Australia/Lord_Howe", HourlySchedule(minute=45), utc(2026, 4, 4, 14), ["05 01:45+1100", "05 01:45+1030"]),
        ("Africa/Casablanca", AT_2_30, utc(2026, 2, 14, 12), ["15 02:30+0100", "16 02:30+0000"]),
    ],
)
def test_time_that_occurs_twice_fires_once_unless_hourly(
    zone: str, pattern: SchedulePattern, before: datetime, expected: list[str]
) -> None:
    assert take(pattern, zone, before, len(expected)) == expected


def test_interval_stays_on_its_grid() -> None:
    anchored = IntervalSchedule(minutes=90, anchor=utc(2026, 1, 1))
    assert next_slot(anchored, load_zone("UTC"), utc(2026, 1, 1, 1, 29)) == utc(2026, 1, 1, 1, 30)
    assert next_slot(anchored, load_zone("UTC"), utc(2026, 1, 1, 1, 30)) == utc(2026, 1, 1, 3, 0)
    assert next_slot(anchored, load_zone("UTC"), utc(2025, 12, 31, 23)) == utc(2026, 1, 1)
    assert next_slot(IntervalSchedule(seconds=5), load_zone("UTC"), utc(2026, 1, 1)) == utc(2026, 1, 1, 0, 0, 5)


def test_typed_cron_terms_mean_the_same_as_text() -> None:
    typed = CronSchedule(
        minute=[CronStep(20)],
        hour=[CronRange(8, 18, 2), CronValues([23])],
        day=BothDays([CronRange(8, 14)], [CronEnumValues([Weekday.TUESDAY])]),
    )
    slots = slots_from(typed, load_zone("UTC"), utc(2026, 1, 13, 8))
    assert [next(slots) for _ in range(2)] == [utc(2026, 1, 13, 8), utc(2026, 1, 13, 8, 20)]
    assert next_slot(typed, load_zone("UTC"), utc(2026, 1, 13, 23, 40)) == utc(2026, 2, 10, 8)


def test_rare_days_are_found() -> None:
    leap_monday = CronSchedule(expression="0 0 29 2 1", both_days=True)
    assert next_slot(leap_monday, load_zone("UTC"), utc(2026, 1, 1)) == utc(2044, 2, 29)
    assert next_slot(CronSchedule.parse("@yearly"), load_zone("UTC"), utc(2026, 1, 1)) == utc(2027, 1, 1)


def test_gap_within_a_year_is_found() -> None:
    assert times_in_gaps(AT_2_30, load_zone(VIENNA), utc(2026, 1, 1)) == [datetime(2026, 3, 29, 2, 30)]  # noqa: DTZ001
    assert times_in_gaps(HALF_PAST, load_zone(VIENNA), utc(2026, 1, 1)) == []
    assert times_in_gaps(AT_2_30, load_zone("UTC"), utc(2026, 1, 1)) == []
