"""Settings of schedules and validation of their patterns; the scheduler computes slot times."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, time
from typing import Annotated, Any, TypeAlias, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings, describe_unknown_key

# Cron expressions

CRON_SYNTAX = (
    "five fields that match some date, such as */5 8-18 * * 1-5: "
    "minute 0-59, hour 0-23, day 1-31, month 1-12 or jan-dec, weekday 0-7 or sun-sat"
)

# A step needs a range: cron implementations disagree on the meaning of 5/10.
_STEP_WITHOUT_RANGE = re.compile(r"(?:^|[\s,])[^\s,*-]*/")


def is_cron(value: object) -> bool:
    """Whether this is a valid cron expression with five fields that matches some date: not 31 February."""
    # CronSim also accepts a sixth field, for seconds.
    if not isinstance(value, str) or len(value.split()) != 5 or _STEP_WITHOUT_RANGE.search(value):
        return False
    try:
        CronSim(value, datetime(2000, 1, 1))  # noqa: DTZ001  # only parsed; no instant is computed from it
    except (CronSimError, ValueError):  # ValueError: a number with thousands of digits
        return False
    return True


# Patterns

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def validate_pattern(pattern: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pattern unchanged if its `type` and all its fields are valid; raises HRS-205 otherwise."""
    kind = pattern.get("type")
    fields = _PATTERN_FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise _invalid(f"pattern.type must be one of {', '.join(_PATTERN_FIELDS)}")
    given = {name: value for name, value in pattern.items() if name != "type"}
    for name, value in given.items():
        if name not in fields:
            text, hint = describe_unknown_key(name, fields)
            raise _invalid(f"pattern.{name}: {text}", hint=hint)
        is_valid, expected = fields[name]
        if not is_valid(value):
            raise _invalid(f"pattern.{name} must be {expected}")
    required = fields.keys() - _OPTIONAL_FIELDS.get(str(kind), frozenset())
    if missing := sorted(required - given.keys()):
        raise _invalid(f"a pattern of type {kind} needs {', '.join(missing)}")
    if not given:
        raise _invalid(f"a pattern of type {kind} needs at least one of {', '.join(fields)}")
    return pattern


_Rule: TypeAlias = tuple[Callable[[object], bool], str]


def _int_between(low: int, high: int) -> _Rule:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"


def _is_time(value: object) -> bool:
    if isinstance(value, time):
        return value.tzinfo is None
    return isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", value) is not None


def _are_weekdays(value: object) -> bool:
    days = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return 0 < len(days) == len({day for day in days if day in _WEEKDAYS})


_TIME: _Rule = (_is_time, "a time such as 02:30")
_MINUTE = _int_between(0, 59)
_PATTERN_FIELDS: dict[str, dict[str, _Rule]] = {
    "interval": {
        "seconds": _int_between(1, 86_400),
        "minutes": _int_between(1, 1_440),
        "hours": _int_between(1, 168),
        "days": _int_between(1, 365),
    },
    "hourly": {"minute": _MINUTE, "second": _MINUTE},
    "daily": {"time": _TIME},
    "weekly": {
        "days": (_are_weekdays, "a list of weekdays without duplicates: " + ", ".join(_WEEKDAYS)),
        "time": _TIME,
    },
    "monthly": {"day": _int_between(1, 31), "time": _TIME},
    "cron": {"expression": (is_cron, CRON_SYNTAX)},
}
_OPTIONAL_FIELDS = {"interval": frozenset({"seconds", "minutes", "hours", "days"}), "hourly": frozenset({"second"})}


def _invalid(message: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.CONFIG_INVALID_SCHEDULE, hint=hint)


def _validate_timezone(name: str) -> str:
    if name == "UTC":
        return name  # valid even if the system has no time zone data
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as cause:
        raise ValueError(name) from cause
    return name


Name = Annotated[StrictStr, Field(min_length=1, max_length=255)]
TimeZone = Annotated[str, AfterValidator(_validate_timezone), RuleText("an IANA time zone such as Europe/Vienna")]


class TaskSchedule(Settings):
    """A recurring send of one task; `name` is the key of its stored state."""

    fault_code = ErrorCode.CONFIG_INVALID_SCHEDULE

    name: Name = Field(examples=["nightly-report"], description="unique name; progress is stored under it")
    task_name: Name = Field(examples=["reports.nightly"], description="task to send")
    pattern: Annotated[Mapping[str, Any], AfterValidator(validate_pattern)] = Field(
        examples=[{"type": "daily", "time": "02:30"}],
        description="when to run; type: interval, hourly, daily, weekly, monthly or cron",
    )
    args: tuple[Any, ...] = Field(default=(), description="positional arguments")
    kwargs: Mapping[str, Any] = Field(default={}, description="keyword arguments")
    queue_name: str | None = Field(
        default=None, examples=["reports"], description="queue to send to; default: the task's queue"
    )
    enabled: StrictBool = Field(default=True, description="set to false to stop this schedule")
    timezone: TimeZone = Field(default="UTC", description="IANA time zone of the pattern")
    catch_up_missed: StrictBool = Field(default=False, description="send every missed run instead of only the latest")
    max_catch_up_runs: StrictInt = Field(default=100, ge=1, le=10_000, description="most missed runs sent in one check")


class ScheduleConfig(Settings):
    """All schedules, and how often they are checked."""

    fault_code = ErrorCode.CONFIG_INVALID_SCHEDULE

    enabled: StrictBool = Field(default=True, description="set to false to stop all schedules")
    check_interval_seconds: StrictInt = Field(
        default=1, ge=1, le=60, description="seconds between checks for due schedules"
    )
    schedules: list[TaskSchedule] = Field(default=[], description="one table per schedule")

    def contradictions(self) -> Iterator[Fault]:
        counts = Counter(schedule.name for schedule in self.schedules)
        for name in (name for name, count in counts.items() if count > 1):
            yield Fault.between("schedules", text=f"must have unique names, but {name!r} is used {counts[name]} times")
