"""Slot times: the instants at which a pattern is due in a time zone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from horsies.model.settings.patterns import DstGap, IntervalSchedule, SchedulePattern, WallClock, wall_clock

LARGEST_SHIFT: Final = timedelta(hours=4)
"""Longer than clocks have been set back anywhere since 1970."""
MAX_DAYS: Final = 60 * 366
"""How far to look for a matching day; 29 February on a given weekday may be 40 years away."""

_DAY = timedelta(days=1)


def next_slot(
    pattern: SchedulePattern, zone: ZoneInfo, after: datetime, *, dst_gap: DstGap = "skip"
) -> datetime | None:
    """Return the first slot strictly after `after`, in UTC; None if there is none in the next decades."""
    after = after if after.tzinfo is UTC else after.astimezone(UTC)
    if isinstance(pattern, IntervalSchedule):
        return _next_interval(pattern, after)
    clock = wall_clock(pattern)
    if clock is None:
        return None
    try:
        return _next_wall_slot(clock, zone, after, dst_gap)
    except OverflowError:  # past the year 9999
        return None


def slots_from(
    pattern: SchedulePattern, zone: ZoneInfo, first: datetime, *, dst_gap: DstGap = "skip"
) -> Iterator[datetime]:
    """Yield the slot `first` and those after it."""
    slot: datetime | None = first
    while slot is not None:
        yield slot
        slot = next_slot(pattern, zone, slot, dst_gap=dst_gap)


def _next_interval(pattern: IntervalSchedule, after: datetime) -> datetime:
    anchor, length = pattern.anchor or after, pattern.length
    return anchor + ((after - anchor) // length + 1) * length


def _next_wall_slot(clock: WallClock, zone: ZoneInfo, after: datetime, dst_gap: DstGap) -> datetime | None:
    """Try local times in order until no later one can be due earlier."""
    offset = _offset(zone, after)
    # If clocks are set back soon, local times before the present one occur again.
    set_back = max(timedelta(), offset - _offset(zone, after + LARGEST_SHIFT))
    best: datetime | None = None
    for wall in _wall_times(clock, after.replace(tzinfo=None) + offset - set_back):
        instants = _instants(wall, zone, is_elapsed=clock.is_elapsed, dst_gap=dst_gap)
        if best is not None and instants and instants[0] >= best:
            break
        found = [instant for instant in instants if instant > after]
        best = min([*found, best] if best else found, default=None)
        if best is not None and not set_back:
            break
    return best


def _wall_times(clock: WallClock, start: datetime) -> Iterator[datetime]:
    """Yield the matching local times from `start` on."""
    since_midnight = start - datetime.combine(start.date(), time())
    first = bisect_left(clock.times, since_midnight.total_seconds())
    day = start.date()
    for _ in range(MAX_DAYS):
        if clock.matches_day(day):
            midnight = datetime.combine(day, time())
            for seconds in clock.times[first:]:
                yield midnight + timedelta(seconds=seconds)
        first = 0
        day += _DAY


def _instants(wall: datetime, zone: ZoneInfo, *, is_elapsed: bool, dst_gap: DstGap) -> tuple[datetime, ...]:
    """The instants at which clocks in the zone show `wall` and that count, ascending."""
    before, after = _local_offset(wall, zone, fold=0), _local_offset(wall, zone, fold=1)
    first = (wall - before).replace(tzinfo=UTC)
    if before == after:
        return (first,)
    second = (wall - after).replace(tzinfo=UTC)
    if before > after:  # it occurs twice
        return (first, second) if is_elapsed else (first,)
    # It does not occur: `second`, by the later offset, is before the change, and `first` is after it.
    if is_elapsed or dst_gap == "skip":
        return ()
    return (_change_between(zone, second, first),)


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The instant in (before, after] at which the offset changes."""
    offset, low, high = _offset(zone, before), 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, before + timedelta(seconds=middle)) == offset:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _local_offset(wall: datetime, zone: ZoneInfo, *, fold: int) -> timedelta:
    return wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()


def times_in_gaps(pattern: SchedulePattern, zone: ZoneInfo, start: datetime) -> list[datetime]:
    """The local times of the pattern within a year of `start` that do not exist; only patterns bound to local times."""
    clock = wall_clock(pattern)
    if clock is None or clock.is_elapsed:
        return []
    found: list[datetime] = []
    first: date = start.astimezone(zone).date()
    for day in (first + n * _DAY for n in range(366)):
        midnight = datetime.combine(day, time())
        if _local_offset(midnight, zone, fold=0) < _local_offset(midnight + _DAY, zone, fold=1) and clock.matches_day(
            day
        ):
            walls = (midnight + timedelta(seconds=seconds) for seconds in clock.times)
            found += [wall for wall in walls if not _instants(wall, zone, is_elapsed=False, dst_gap="skip")]
    return found
