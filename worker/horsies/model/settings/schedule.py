"""Tasks that start by the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, Strict

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.fault import Fault
from horsies.model.settings.patterns import checked_pattern
from horsies.model.settings.ranges import between
from horsies.model.settings.wording import Says


def _known_zone(name: str) -> str:
    if name == "UTC":
        return name  # also where the system has no zone data
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as cause:
        raise ValueError(name) from cause
    return name


Name = Annotated[str, Field(strict=True, min_length=1, max_length=255), Says("text of 1 to 255 characters")]


class TaskSchedule(Settings):
    """One task and the pattern it follows; `name` is the key under which its progress is remembered."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_SCHEDULE

    name: Name
    task_name: Name
    pattern: Annotated[Mapping[str, Any], AfterValidator(checked_pattern)]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    queue_name: str | None = None
    enabled: Annotated[bool, Strict()] = True
    timezone: Annotated[str, AfterValidator(_known_zone), Says("an IANA time zone such as Europe/Vienna")] = "UTC"
    catch_up_missed: Annotated[bool, Strict()] = False
    max_catch_up_runs: Annotated[int, between(1, 10_000)] = 100


class ScheduleConfig(Settings):
    """All schedules, and how often they are looked at."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_SCHEDULE

    enabled: Annotated[bool, Strict()] = True
    schedules: list[TaskSchedule] = Field(default_factory=list[TaskSchedule])
    check_interval_seconds: Annotated[int, between(1, 60)] = 1

    def contradictions(self) -> Iterator[Fault]:
        counts = Counter(schedule.name for schedule in self.schedules)
        for name in (name for name, count in counts.items() if count > 1):
            yield Fault.of("schedules", text=f"must have a name each, but {name!r} is used {counts[name]} times")
