"""Settings of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias
from zoneinfo import ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from horsies.errors import ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings
from horsies.model.settings.patterns import DstGap, SchedulePattern, load_zone, parse_pattern

Missed: TypeAlias = Literal["latest", "all", "none"]
"""Which of several due slots fire, for example after an outage; "none": only those less than `grace` late."""
Overlap: TypeAlias = Literal["allow", "skip", "queue_one", "replace"]
"""What happens with a slot while an earlier one is running: it fires, is skipped, waits, or replaces that one."""


def _check_timezone(name: str) -> str:
    if name != "UTC":  # valid even if the system has no time zone data
        try:
            load_zone(name)
        except ZoneInfoNotFoundError as cause:
            raise ValueError(name) from cause
    return name


def _check_name(name: str) -> str:
    if not name.isprintable() or name != name.strip():  # operators type it, and it is shown in terminals
        raise ValueError(name)
    return name


def _to_seconds(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _check_seconds(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
        raise ValueError(value)
    return float(value)


_LONGEST_S = 10 * 365 * 86_400
_DURATION = RuleText("a number of seconds or a timedelta, above 0 and at most ten years")
_Duration = Annotated[float, BeforeValidator(_check_seconds), BeforeValidator(_to_seconds)]
Duration = Annotated[_Duration, _DURATION]
OptionalDuration = Annotated[_Duration | None, _DURATION]
GoodFor = Annotated[
    Annotated[
        float | Literal["next"],
        BeforeValidator(lambda value: value if value == "next" else _check_seconds(_to_seconds(value))),
    ]
    | None,
    RuleText('seconds, a timedelta or "next"'),
]
Name = Annotated[StrictStr, Field(min_length=1, max_length=255)]
ScheduleName = Annotated[
    StrictStr,
    AfterValidator(_check_name),
    Field(min_length=1, max_length=255),
    RuleText("1 to 255 printable characters"),
]
TimeZone = Annotated[str, AfterValidator(_check_timezone), RuleText("an IANA time zone such as Europe/Vienna")]
PatternField: TypeAlias = Annotated[
    SchedulePattern, BeforeValidator(parse_pattern), RuleText("a pattern, or a table with its type and fields")
]

ScheduleSource: TypeAlias = Literal["code", "toml", "dynamic"]


class TaskSchedule(Settings):
    """A recurring send of a task, or a recurring workflow run; `name` is the key of its stored state."""

    fault_code = ErrorCode.CONFIG_INVALID_SCHEDULE

    name: ScheduleName = Field(examples=["nightly-report"], description="unique name; progress is stored under it")
    task_name: Name | None = Field(default=None, examples=["reports.nightly"], description="task to send")
    workflow: Any = None
    """Workflow to start in place of a task: a WorkflowDefinition, its `definition_key`, or a WorkflowSpec."""
    pattern: PatternField = Field(
        examples=[{"type": "daily", "time": "02:30"}],
        description="when to run; type: interval, hourly, daily, weekly, monthly or cron",
    )
    args: tuple[Any, ...] = Field(default=(), description="positional arguments")
    kwargs: Mapping[str, Any] = Field(default={}, description="keyword arguments")
    queue_name: str | None = Field(
        default=None, examples=["reports"], description="queue to send to; default: the task's queue"
    )
    priority: StrictInt | None = Field(
        default=None,
        ge=1,
        le=100,
        examples=[50],
        description="priority, 1 (first) to 100; default: the task's priority",
    )
    enabled: StrictBool = Field(default=True, description="set to false to stop this schedule")
    timezone: TimeZone = Field(default="UTC", description="IANA time zone of the pattern")
    dst_gap: DstGap = Field(
        default="skip",
        description="what happens at a local time that does not exist: skip it, or shift it to the end of the gap",
    )
    missed: Missed = Field(
        default="latest", description="which missed slots fire: latest, all, or none that are later than grace"
    )
    missed_within: OptionalDuration = Field(
        default=None, examples=[86_400], description="drop missed slots older than this many seconds"
    )
    grace: Duration = Field(default=60.0, description='with missed = "none": how many seconds late a slot may fire')
    catch_up_missed: StrictBool = Field(default=False, description='the same as missed = "all"')
    max_catch_up_runs: StrictInt = Field(default=100, ge=1, le=10_000, description="most missed runs sent in one check")
    good_for: GoodFor = Field(
        default=None,
        examples=[3600],
        description='seconds after its slot until which the task may start; "next": until the next slot',
    )
    jitter_s: OptionalDuration = Field(
        default=None, examples=[30], description="spread the starts over this many seconds, by name and slot"
    )
    overlap: Overlap = Field(
        default="allow",
        description="what happens while an earlier slot is still running: allow, skip, queue_one or replace",
    )
    pause_after_failures: StrictInt | None = Field(
        default=None, ge=1, le=1000, examples=[5], description="pause after this many failed slots in a row"
    )
    source: ScheduleSource = "code"

    def contradictions(self) -> Iterator[Fault]:
        if (self.task_name is None) == (self.workflow is None):
            yield Fault.between("task_name", "workflow", text="give either task_name or workflow")
        if self.workflow is not None:
            for name in ("args", "queue_name", "priority", "jitter_s"):
                if getattr(self, name):
                    yield Fault.between(name, "workflow", text="applies to tasks only, not to a workflow")
        if self.catch_up_missed and self.missed == "none":
            yield Fault.between("catch_up_missed", "missed", text='contradicts missed = "none"')

    @property
    def effective_missed(self) -> Missed:
        return "all" if self.catch_up_missed else self.missed


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


__all__ = ["Missed", "Overlap", "ScheduleConfig", "SchedulePattern", "ScheduleSource", "TaskSchedule"]
