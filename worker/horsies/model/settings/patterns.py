"""When a schedule is due: patterns as classes and as tables, and cron expressions as text and as typed terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
)

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings


class Weekday(IntEnum):
    """Days of the week, Monday first."""

    MONDAY = 0
    TUESDAY = 1
    WEDNESDAY = 2
    THURSDAY = 3
    FRIDAY = 4
    SATURDAY = 5
    SUNDAY = 6


class Month(IntEnum):
    """Months of the year."""

    JANUARY = 1
    FEBRUARY = 2
    MARCH = 3
    APRIL = 4
    MAY = 5
    JUNE = 6
    JULY = 7
    AUGUST = 8
    SEPTEMBER = 9
    OCTOBER = 10
    NOVEMBER = 11
    DECEMBER = 12


DstGap: TypeAlias = Literal["skip", "shift"]
"""What happens with a local time that does not exist: nothing, or it is due at the first instant after the gap."""


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    """Return the zone; raises ZoneInfoNotFoundError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError) as cause:  # a name that is a path or a folder
        raise ZoneInfoNotFoundError(name) from cause


def invalid_schedule(message: str, *, hint: str | None = None) -> ConfigurationError:
    """Return HRS-205."""
    return ConfigurationError(message, code=ErrorCode.CONFIG_INVALID_SCHEDULE, hint=hint)


# Fields of patterns


def _to_weekday(value: object) -> object:
    """Accept a weekday by name, as in TOML."""
    if isinstance(value, str) and value.upper() in Weekday.__members__:
        return Weekday[value.upper()]
    if type(value) in (int, Weekday):
        return Weekday(cast("int", value))
    raise ValueError(value)


def _check_weekdays(days: tuple[Weekday, ...]) -> tuple[Weekday, ...]:
    if not days or len(set(days)) != len(days):
        raise ValueError(days)
    return days


def _check_time(value: object) -> object:
    if isinstance(value, time) and value.tzinfo is None and not value.microsecond:
        return value
    if isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", value):
        return time.fromisoformat(value)
    raise ValueError(value)


def _check_anchor(value: object) -> datetime | None:
    anchor = datetime.fromisoformat(value) if isinstance(value, str) else value
    if anchor is None:
        return None
    if not isinstance(anchor, datetime) or anchor.tzinfo is None:
        raise ValueError(value)
    return anchor.astimezone(UTC)


WEEKDAY_RULE = "a list of weekdays without duplicates: " + ", ".join(day.name.lower() for day in Weekday)
LocalTime = Annotated[time, BeforeValidator(_check_time), RuleText("a time such as 02:30")]
WeekdayName = Annotated[
    Weekday, BeforeValidator(_to_weekday), PlainSerializer(lambda day: Weekday(day).name.lower(), return_type=str)
]
Weekdays = Annotated[tuple[WeekdayName, ...], AfterValidator(_check_weekdays), RuleText(WEEKDAY_RULE)]
Anchor = Annotated[
    datetime | None,
    PlainValidator(_check_anchor),
    PlainSerializer(lambda at: at and at.isoformat(), return_type=str | None),
    RuleText("an instant with a time zone, such as 2030-01-01T00:00:00Z"),
]


class Pattern(Settings):
    """Base of the patterns; `type` names one in a table."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_SCHEDULE

    def to_table(self) -> dict[str, Any]:
        """Return the pattern as plain JSON values, as it is stored."""
        return self.model_dump(mode="json", exclude_none=True)


class IntervalSchedule(Pattern):
    """A slot after each interval of elapsed time; the zone has no effect.

    With an `anchor`, slots are on the grid anchor + n × interval. Otherwise the first slot is one interval after the
    schedule was first seen.
    """

    type: Literal["interval"] = "interval"
    seconds: StrictInt | None = Field(default=None, ge=1, le=86_400)
    minutes: StrictInt | None = Field(default=None, ge=1, le=1_440)
    hours: StrictInt | None = Field(default=None, ge=1, le=168)
    days: StrictInt | None = Field(default=None, ge=1, le=365)
    anchor: Anchor = None

    def contradictions(self) -> Any:
        if not self.length:
            text = "at least one of seconds, minutes, hours, days is required"
            yield Fault.between("seconds", "minutes", "hours", "days", text=text)

    @property
    def length(self) -> timedelta:
        return timedelta(
            seconds=self.seconds or 0, minutes=self.minutes or 0, hours=self.hours or 0, days=self.days or 0
        )


class HourlySchedule(Pattern):
    """Once in every hour; both passes of an hour that occurs twice count."""

    type: Literal["hourly"] = "hourly"
    minute: StrictInt = Field(ge=0, le=59)
    second: StrictInt = Field(default=0, ge=0, le=59)


class DailySchedule(Pattern):
    """Every day at a local time."""

    type: Literal["daily"] = "daily"
    time: LocalTime


class WeeklySchedule(Pattern):
    """On some weekdays at a local time."""

    type: Literal["weekly"] = "weekly"
    days: Weekdays
    time: LocalTime


class MonthlySchedule(Pattern):
    """On one day of each month that has it, at a local time."""

    type: Literal["monthly"] = "monthly"
    day: StrictInt = Field(ge=1, le=31)
    time: LocalTime


# Typed cron terms


@dataclass(frozen=True, slots=True)
class CronEvery:
    """Every value of the field."""


@dataclass(frozen=True, slots=True)
class CronStep:
    """Every `step`-th value, from the first value of the field."""

    step: int


@dataclass(frozen=True, slots=True)
class CronValues:
    """These values."""

    values: Sequence[int]


@dataclass(frozen=True, slots=True)
class CronRange:
    """The values from `start` to `end`, both included; ranges do not wrap."""

    start: int
    end: int
    step: int = 1


class CronEnumStep(CronStep):
    """Every `step`-th month or weekday, from January or Monday."""


class CronEnumValues(CronValues):
    """These months or weekdays."""


class CronEnumRange(CronRange):
    """The months or weekdays from `start` to `end`, both included; ranges do not wrap."""


CronTerm: TypeAlias = CronEvery | CronStep | CronValues | CronRange


@dataclass(frozen=True, slots=True)
class EveryDay:
    """Every day."""


@dataclass(frozen=True, slots=True)
class ByMonthDay:
    """Days of the month."""

    days: Sequence[CronTerm]


@dataclass(frozen=True, slots=True)
class ByWeekday:
    """Days of the week."""

    days: Sequence[CronTerm]


@dataclass(frozen=True, slots=True)
class EitherDay:
    """Days that match one of the two."""

    month_days: Sequence[CronTerm]
    weekdays: Sequence[CronTerm]


@dataclass(frozen=True, slots=True)
class BothDays:
    """Days that match both."""

    month_days: Sequence[CronTerm]
    weekdays: Sequence[CronTerm]


DaySelector: TypeAlias = EveryDay | ByMonthDay | ByWeekday | EitherDay | BothDays

_MINUTES, _HOURS, _MONTH_DAYS, _MONTHS, _WEEKDAYS = (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)
_EVERY = (CronEvery(),)


def _terms_text(name: str, terms: Sequence[CronTerm], limits: tuple[int, int], *, shift: int = 0) -> str:
    """Render the terms of one field; `shift` converts Monday = 0 to the numbers of cron text."""
    if not isinstance(terms, list | tuple) or not terms:
        raise invalid_schedule(f"{name} must be a list of cron terms, not empty")
    return ",".join(_term_text(name, term, limits, shift) for term in terms)


def _term_text(name: str, term: CronTerm, limits: tuple[int, int], shift: int) -> str:
    low, high = limits
    match term:
        case CronEvery():
            return "*"
        case CronStep(step):
            start, end = low, high
        case CronRange(start, end, step):
            pass
        case CronValues(values):
            if not values or not all(low <= value <= high for value in values):
                raise invalid_schedule(f"{name}: values must be from {low} to {high}, got {list(values)}")
            return ",".join(str(int(value) + shift) for value in values)
        case _:
            raise invalid_schedule(f"{name} must be a list of cron terms, got {type(term).__qualname__}")
    if not low <= start <= end <= high or step < 1:
        raise invalid_schedule(f"{name}: invalid range {start}-{end}/{step}; it must be within {low}-{high}")
    return f"{start + shift}-{end + shift}/{step}"


# Cron expressions

CRON_SYNTAX = (
    "five fields that match some date, such as */5 8-18 * * 1-5: "
    "minute 0-59, hour 0-23, day 1-31, month 1-12 or jan-dec, weekday 0-7 or sun-sat; or @hourly, @daily, @weekly, "
    "@monthly, @yearly"
)
CRON_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# A step needs a range: cron implementations disagree on the meaning of 5/10.
_STEP_WITHOUT_RANGE = re.compile(r"(?:^|[\s,])[^\s,*-]*/")


@lru_cache(maxsize=1024)
def parse_cron(expression: str, *, both_days: bool = False) -> CronSim | None:
    """Parse a cron expression of five fields or a macro; None if it is invalid or matches no date."""
    expression = CRON_MACROS.get(expression.lower(), expression)
    # CronSim also accepts a sixth field, for seconds.
    if len(expression.split()) != 5 or _STEP_WITHOUT_RANGE.search(expression):
        return None
    try:
        cron = CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001  # only parsed; no instant is computed from it
    except (CronSimError, ValueError, AssertionError):  # ValueError: a number with thousands of digits
        return None
    cron.day_and = cron.day_and or both_days
    # 40 years have every combination of leap years and weekdays.
    days = (date(2000, 1, 1) + timedelta(days=n) for n in range(40 * 366))
    return cron if any(day.month in cron.months and cron.match_day(day) for day in days) else None


class CronSchedule(Pattern):
    """A cron expression, at second 0: `CronSchedule.parse("*/5 8-18 * * 1-5")`, or typed terms for each field.

    `both_days` requires both the day of the month and the weekday to match, like `BothDays`.
    """

    type: Literal["cron"] = "cron"
    expression: StrictStr
    both_days: StrictBool = False

    def __init__(
        self,
        /,
        *,
        minute: Sequence[CronTerm] | None = None,
        hour: Sequence[CronTerm] | None = None,
        day: DaySelector | None = None,
        month: Sequence[CronTerm] | None = None,
        **given: Any,
    ) -> None:
        if "expression" not in given and not (minute is hour is day is month is None):
            given = {**_typed_expression(minute or _EVERY, hour or _EVERY, day or EveryDay(), month or _EVERY), **given}
        super().__init__(**given)

    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]  # see Settings

    @classmethod
    def parse(cls, expression: str) -> CronSchedule:
        return cls(expression=expression)

    def contradictions(self) -> Any:
        if parse_cron(self.expression, both_days=self.both_days) is None:
            text = f"must be {CRON_SYNTAX}, got {self.expression[:80]!r}"
            yield Fault.between("expression", "both_days", text=text)


def _typed_expression(
    minute: Sequence[CronTerm], hour: Sequence[CronTerm], day: DaySelector, month: Sequence[CronTerm]
) -> dict[str, object]:
    match day:
        case EveryDay():
            month_days, weekdays = _EVERY, _EVERY
        case ByMonthDay(days):
            month_days, weekdays = days, _EVERY
        case ByWeekday(days):
            month_days, weekdays = _EVERY, days
        case EitherDay(month_days, weekdays) | BothDays(month_days, weekdays):
            pass
        case _:
            raise invalid_schedule(f"day must be a day selector such as EveryDay(), got {type(day).__qualname__}")
    fields = (
        _terms_text("minute", minute, _MINUTES),
        _terms_text("hour", hour, _HOURS),
        _terms_text("day", month_days, _MONTH_DAYS),
        _terms_text("month", month, _MONTHS),
        _terms_text("weekday", weekdays, _WEEKDAYS, shift=1),
    )
    return {"expression": " ".join(fields), "both_days": isinstance(day, BothDays)}


SchedulePattern: TypeAlias = (
    IntervalSchedule | HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule
)
_PATTERNS: Mapping[str, type[SchedulePattern]] = {
    "interval": IntervalSchedule,
    "hourly": HourlySchedule,
    "daily": DailySchedule,
    "weekly": WeeklySchedule,
    "monthly": MonthlySchedule,
    "cron": CronSchedule,
}


def parse_pattern(given: object) -> SchedulePattern:
    """Return a pattern given as an object, a table with a `type`, or a cron expression; raises HRS-205."""
    if isinstance(given, Pattern):
        return cast("SchedulePattern", given)
    if isinstance(given, str):
        return CronSchedule.parse(given)
    table = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
    kind = _PATTERNS.get(str(table.get("type")))
    if kind is None:
        raise invalid_schedule(f"pattern.type must be one of {', '.join(_PATTERNS)}")
    try:
        return kind.model_validate(table)
    except ConfigurationError as error:
        raise invalid_schedule("; ".join(f"pattern.{fault.message}" for fault in error.faults)) from None


# What wall-clock patterns have in common


@dataclass(frozen=True, slots=True)
class WallClock:
    """The local times of a pattern: seconds of the day, ascending, on the days that match."""

    times: tuple[int, ...]
    matches_day: Callable[[date], bool]
    is_elapsed: bool
    """Whether it covers every hour, so that it follows elapsed time: both passes of a doubled hour count."""


def wall_clock(pattern: SchedulePattern) -> WallClock | None:
    """Return the local times of a pattern; None for an interval."""
    return _wall_clock(cast("Any", pattern))  # frozen, and therefore hashable, which pyright does not know


@lru_cache(maxsize=4096)
def _wall_clock(pattern: SchedulePattern) -> WallClock | None:
    match pattern:
        case IntervalSchedule():
            return None
        case HourlySchedule():
            times = tuple(hour * 3600 + pattern.minute * 60 + pattern.second for hour in range(24))
            return WallClock(times, lambda _: True, is_elapsed=True)
        case DailySchedule():
            return WallClock((_seconds(pattern.time),), lambda _: True, is_elapsed=False)
        case WeeklySchedule():
            days = frozenset(pattern.days)
            return WallClock((_seconds(pattern.time),), lambda day: day.weekday() in days, is_elapsed=False)
        case MonthlySchedule():
            return WallClock((_seconds(pattern.time),), lambda day: day.day == pattern.day, is_elapsed=False)
        case CronSchedule():
            cron = parse_cron(pattern.expression, both_days=pattern.both_days)
            if cron is None:  # only if the pattern was made without validation
                raise invalid_schedule(f"invalid cron expression {pattern.expression!r}")
            times = tuple(sorted(hour * 3600 + minute * 60 for hour in cron.hours for minute in cron.minutes))
            return WallClock(
                times,
                lambda day: day.month in cron.months and cron.match_day(day),
                is_elapsed=len(cron.hours) == 24,
            )


def _seconds(at: time) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second
