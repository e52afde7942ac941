"""Retry policies, the decision about what follows a failed attempt, and how a child process ended.

`decide_retry` decides for every cause and every caller: the worker that stores outcomes, the worker whose child died,
recovery of dead workers' tasks, and `horsies.testing`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, assert_never

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from horsies.errors import ErrorCode, SourceLocation, TaskDefinitionError
from horsies.model.task import EARLIEST_INSTANT, LATEST_INSTANT
from horsies.model.task_result import NEVER_RETRIED, UPPER_SNAKE, OperationalErrorCode, OutcomeCode, TaskError
from horsies.model.text import describe_validation_error, format_violations

MAX_JITTER = 0.25
MAX_RETRIES = 20

_CODE_RULE = "must be in UPPER_SNAKE (use exception_mapper to map exception classes to codes)"


def _check_retryable(code: str) -> str:
    if not UPPER_SNAKE.fullmatch(code):
        raise ValueError(_CODE_RULE)
    if code in NEVER_RETRIED:
        raise ValueError(f"{code} is never retried")
    return code


Interval = Annotated[StrictInt, Field(ge=1, le=86_400)]
RetryableCode = Annotated[str, AfterValidator(_check_retryable)]

T = TypeVar("T")
if TYPE_CHECKING:
    FrozenList: TypeAlias = Sequence[T]
else:
    # A list on input and when serialized, a tuple in memory: all sends of a task share its policy.
    FrozenList = Annotated[list[T], AfterValidator(tuple), PlainSerializer(list)]


class RetryPolicy(BaseModel):
    """When to retry a failed task: for which error codes, how often, after how many seconds.

    The policy is stored with each task, so recovery can apply it without the task's code. An invalid policy raises
    `TaskDefinitionError` (a `ValueError`) that lists all its faults in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retries: Annotated[StrictInt, Field(ge=1, le=MAX_RETRIES)] = 3
    intervals: Annotated[FrozenList[Interval], Field(min_length=1, max_length=MAX_RETRIES)] = (60, 300, 900)
    # Validated as a field, not by a model validator, so that its fault is reported together with the others.
    backoff_strategy: Annotated[Literal["fixed", "exponential"], Field(validate_default=True)] = "fixed"
    jitter: StrictBool = True
    max_delay_seconds: Annotated[StrictInt, Field(gt=0)] | None = None
    auto_retry_for: Annotated[FrozenList[RetryableCode], Field(min_length=1)]

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as invalid:
                text = f"RetryPolicy: {'; '.join(format_violations(invalid, describe=_message))}"
                location = SourceLocation.of_caller()
                raise TaskDefinitionError(text, code=ErrorCode.TASK_INVALID_OPTIONS, location=location) from None

        # Inside another model, pydantic then reports the policy's faults together with that model's.
        __init__.__pydantic_base_init__ = True

    @field_validator("backoff_strategy")
    @classmethod
    def _check_number_of_intervals(cls, strategy: str, info: ValidationInfo) -> str:
        retries, intervals = info.data.get("max_retries"), info.data.get("intervals")
        if strategy == "exponential" and intervals is not None and len(intervals) != 1:
            raise ValueError(f"exponential needs exactly one interval, the base delay, got {len(intervals)}")
        if strategy == "fixed" and None not in (retries, intervals) and len(intervals or ()) != retries:
            raise ValueError(f"fixed needs as many intervals as max_retries ({retries}), got {len(intervals or ())}")
        return strategy

    @classmethod
    def fixed(cls, intervals: Sequence[int], *, auto_retry_for: Sequence[str], jitter: bool = True) -> RetryPolicy:
        """One retry for each interval, in seconds."""
        return cls(
            # Keep max_retries in range, so that a wrong number of intervals is reported for `intervals` only.
            max_retries=min(max(len(intervals), 1), MAX_RETRIES) if isinstance(intervals, Sized) else 1,
            intervals=intervals,
            jitter=jitter,
            auto_retry_for=auto_retry_for,
        )

    @classmethod
    def exponential(
        cls,
        base_seconds: int,
        *,
        max_retries: int,
        auto_retry_for: Sequence[str],
        jitter: bool = True,
        max_delay_seconds: int | None = None,
    ) -> RetryPolicy:
        """Retries after base, 2 x base, 4 x base, … seconds."""
        return cls(
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
            auto_retry_for=auto_retry_for,
        )


_MESSAGES = {
    ("intervals", "list_type"): "must be a list of delays in seconds",
    ("auto_retry_for", "list_type"): "must be a list of error codes",
    ("auto_retry_for", "string_type"): _CODE_RULE,
}


def _message(violation: ErrorDetails) -> str:
    """Return the message of our own validators, else one of `_MESSAGES`, else the general description."""
    message = violation.get("ctx", {}).get("error") or _MESSAGES.get((str(violation["loc"][0]), violation["type"]))
    return describe_validation_error(violation) if message is None else str(message)


def stored_policy(task_options: Mapping[str, object]) -> RetryPolicy | None:
    """Parse the policy that was stored with a task; None if there is none, or if it is invalid in this version."""
    stored = task_options.get("retry_policy")
    try:
        return None if stored is None else RetryPolicy.model_validate(stored)
    except ValueError:
        # One unreadable row must not stop a worker or a sweep. Without a policy the task is not retried.
        return None


def backoff_delay_s(policy: RetryPolicy, retry_number: int, jitter: float) -> float:
    """Return the delay before retry `retry_number` (from 1); `jitter` is random, from 0 to 1, and only lengthens it."""
    if not 1 <= retry_number <= policy.max_retries:
        raise ValueError(f"retry_number must be from 1 to {policy.max_retries}, got {retry_number}")
    if not 0.0 <= jitter <= 1.0:
        raise ValueError(f"jitter must be from 0 to 1, got {jitter}")
    if policy.backoff_strategy == "exponential":
        delay = float(policy.intervals[0] * 2 ** (retry_number - 1))
    else:
        delay = float(policy.intervals[retry_number - 1])
    if policy.jitter:
        delay *= 1.0 + MAX_JITTER * jitter
    return delay if policy.max_delay_seconds is None else min(delay, float(policy.max_delay_seconds))


# Answers of recovery hooks

MAX_ATTEMPTS: Final = 2**31 - 1  # stored in `retry_count`, an integer column


class RecoveryKind(StrEnum):
    """What a hook decided for a task."""

    DEFAULT = "default"
    RESCHEDULE = "reschedule"
    FAIL_WITH_BACKOFF = "fail_with_backoff"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A hook's answer about one task; create it with one of the four class methods."""

    kind: RecoveryKind
    run_at: datetime | None = None
    """When the task is due; for reschedule only."""
    attempts: int | None = None
    """Number of retries counted as used, for reschedule only; None keeps the current number."""

    def __post_init__(self) -> None:
        if fault := answer_error(self):
            raise ValueError(fault)
        if self.run_at is not None:
            object.__setattr__(self, "run_at", self.run_at.astimezone(UTC))  # stored and shown times are UTC

    @classmethod
    def default(cls) -> Recovery:
        """Do what would happen without a hook."""
        return cls(kind=RecoveryKind.DEFAULT)

    @classmethod
    def reschedule(cls, run_at: datetime, attempts: int | None = None) -> Recovery:
        """Run again at exactly `run_at`, a timezone-aware datetime, with `attempts` retries counted as used.

        The crash still counts, a task that crashed too often still fails, and `good_until` still applies.
        """
        return cls(kind=RecoveryKind.RESCHEDULE, run_at=run_at, attempts=attempts)

    @classmethod
    def fail_with_backoff(cls) -> Recovery:
        """Count a failed attempt; retry with the policy's backoff while retries are left, for any error code."""
        return cls(kind=RecoveryKind.FAIL_WITH_BACKOFF)

    @classmethod
    def skip(cls) -> Recovery:
        """Leave the task alone and ask again after one more threshold."""
        return cls(kind=RecoveryKind.SKIP)


def answer_error(answer: Recovery) -> str | None:
    """Return what is wrong with a hook's answer, or None; user code may have put any types in it."""
    kind, run_at, attempts = (getattr(answer, name, None) for name in ("kind", "run_at", "attempts"))
    if not isinstance(kind, RecoveryKind):
        return f"invalid kind {kind!r}: create a Recovery with default(), reschedule(), fail_with_backoff() or skip()"
    if (run_at is None) != (kind is not RecoveryKind.RESCHEDULE):
        return "run_at is required for reschedule and not allowed otherwise"
    if run_at is not None and (fault := _instant_error(run_at)):
        return fault
    if attempts is not None and (type(attempts) is not int or not 0 <= attempts <= MAX_ATTEMPTS):
        return f"attempts must be a whole number, 0 or more, got {attempts!r}"
    return None


def _instant_error(run_at: object) -> str | None:
    if not isinstance(run_at, datetime):
        return f"run_at must be a datetime, got {type(run_at).__qualname__}"
    if run_at.utcoffset() is None:
        return f"run_at must have a time zone, got {run_at.isoformat()}"
    if not EARLIEST_INSTANT <= run_at <= LATEST_INSTANT:
        return f"run_at must be within the years 1 to 9999 in every time zone, got {run_at.isoformat()}"
    return None


# The decision


def has_expired(good_until: datetime | None, at: datetime) -> bool:
    """Whether a task may no longer start at this instant; `good_until` itself is already too late."""
    return good_until is not None and good_until <= at


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why an attempt failed."""

    code: str | None
    """The error code of the attempt."""
    is_crash: bool = False
    """Its process or worker died. Crashes are counted, and too many make the task a poison task."""
    also_listed_as: str | None = None
    """A second code: the task is also retried if its policy lists this one."""
    is_retried_at_once: bool = False
    """A retry does not wait for the policy's delay."""


CRASH: Final = Cause(code=OperationalErrorCode.WORKER_CRASHED, is_crash=True)
TIMEOUT: Final = Cause(code=OutcomeCode.TASK_TIMEOUT)
SHUTDOWN: Final = Cause(
    code=OperationalErrorCode.SHUTDOWN, also_listed_as=OperationalErrorCode.WORKER_CRASHED, is_retried_at_once=True
)
"""Its worker stopped, or killed the process because of another task running in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """The fields of a task's row that decide what follows a failed attempt, and the crash limit."""

    policy: RetryPolicy | None
    retry_count: int = 0
    crash_count: int = 0
    """Crashes before this attempt."""
    max_crashes: int | None = None
    """Setting `recovery.max_crashes`, used only if the cause is a crash; None: no limit."""
    good_until: datetime | None = None
    no_restart: str | None = None
    """Set if the task's workflow was paused or cancelled: it may finish but not start again."""


class FailReason(StrEnum):
    """Why a task is not retried."""

    NO_POLICY = "no retry policy"
    NOT_LISTED = "code not listed"
    NO_RETRIES_LEFT = "no retries left"
    TOO_LATE = "due at or after good_until"
    TOO_MANY_CRASHES = "too many crashes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed; the next is due at `at`, with `retry_count` retries used."""

    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The task fails with `code`."""

    code: str | None
    reason: FailReason


@dataclass(frozen=True, slots=True)
class Cancel:
    """The task would be retried or requeued, but its workflow was paused or cancelled."""


def decide_retry(
    task: AttemptState,
    cause: Cause,
    *,
    now: datetime,
    jitter: float,
    not_before: datetime | None = None,
    answer: Recovery | None = None,
) -> Retry | Fail | Cancel:
    """Decide what follows a failed attempt.

    `jitter` is a random number from 0 to 1. A retry with the policy's delay is due at `not_before` at the earliest.
    `answer` is that of a recovery hook; not even a hook may restart a poison task or one past its `good_until`.
    """
    if cause.is_crash and task.max_crashes is not None and task.crash_count + 1 >= task.max_crashes:
        return Fail(code=OperationalErrorCode.POISON_TASK, reason=FailReason.TOO_MANY_CRASHES)
    if answer is not None and answer.run_at is not None:
        retry = Retry(at=answer.run_at, retry_count=task.retry_count if answer.attempts is None else answer.attempts)
    else:
        ignores_code = answer is not None and answer.kind is RecoveryKind.FAIL_WITH_BACKOFF
        retry = _retry_by_policy(task, cause, now=now, jitter=jitter, not_before=not_before, ignores_code=ignores_code)
    if isinstance(retry, Retry) and has_expired(task.good_until, retry.at):
        return Fail(code=cause.code, reason=FailReason.TOO_LATE)
    # A task that would fail anyway keeps its own error.
    return Cancel() if isinstance(retry, Retry) and task.no_restart is not None else retry


def _retry_by_policy(
    task: AttemptState, cause: Cause, *, now: datetime, jitter: float, not_before: datetime | None, ignores_code: bool
) -> Retry | Fail:
    policy = task.policy
    if policy is None:
        return Fail(code=cause.code, reason=FailReason.NO_POLICY)
    if not ignores_code and {cause.code, cause.also_listed_as}.isdisjoint(policy.auto_retry_for):
        return Fail(code=cause.code, reason=FailReason.NOT_LISTED)
    if task.retry_count >= policy.max_retries:
        return Fail(code=cause.code, reason=FailReason.NO_RETRIES_LEFT)
    delay_s = 0.0 if cause.is_retried_at_once else backoff_delay_s(policy, task.retry_count + 1, jitter)
    due_at = now + timedelta(seconds=delay_s)
    at = due_at if not_before is None else max(due_at, not_before)
    return Retry(at=at, retry_count=task.retry_count + 1)


# How a child process ended


class ExitCause(StrEnum):
    """Why a child exited; the first five are crashes, stored as `data.cause` of WORKER_CRASHED."""

    CHILD_SIGNAL = "CHILD_SIGNAL"
    CHILD_EXIT = "CHILD_EXIT"
    CHILD_MEMORY = "CHILD_MEMORY"
    CHILD_PROTOCOL = "CHILD_PROTOCOL"
    HEARTBEAT_LOST = "HEARTBEAT_LOST"
    KILLED = "KILLED"
    RETIRED = "RETIRED"

    @property
    def is_crash(self) -> bool:
        return self not in (ExitCause.KILLED, ExitCause.RETIRED)


MAX_FREE_LOST_STARTS: Final = 2
"""How often a task whose child died before the task began is released without using a retry.

After that it counts as crashed: the task may be what kills the child, for example while its arguments are read.
"""


class KillReason(StrEnum):
    """Why a worker killed a child on purpose; never counted as a crash."""

    TIMEOUT = "timeout"
    """A task ran longer than its `timeout_ms`."""
    ROW_LOST = "row lost"
    """This worker no longer owns a task: an operator cancelled it with `kill`, or its row was changed elsewhere."""
    REQUEUED = "requeued"
    """An operator requeued a running task."""
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A child that crashed; `signal` is set for CHILD_SIGNAL, `exit_status` for CHILD_EXIT."""

    cause: ExitCause
    pid: int
    why: str
    signal: int | None = None
    exit_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A child that the worker killed, or a task that it stopped; `task_id` is the task that was to stop, if any."""

    reason: KillReason
    pid: int
    task_id: str | None = None


Death: TypeAlias = Crash | Kill
"""What ended a running attempt from outside."""


def interruption(death: Death, *, task_id: str, timeout_ms: int | None) -> tuple[Cause, TaskError]:
    """Return the cause and the error of an attempt that a crash or a kill ended."""
    match death:
        case Crash():
            message = f"{death.cause}: process {death.pid} {death.why}"
            error = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=message, data=_crash_data(death))
            return CRASH, error
        case Kill(reason=KillReason.TIMEOUT, task_id=cause_id) if cause_id == task_id:
            message = f"ran longer than its timeout of {timeout_ms} ms"
            data = {"timeout_ms": timeout_ms}
            return TIMEOUT, TaskError(error_code=OutcomeCode.TASK_TIMEOUT, message=message, data=data)
        case Kill(reason=KillReason.SHUTDOWN):
            return SHUTDOWN, _shutdown_error(death, "interrupted by worker shutdown")
        case Kill():
            return SHUTDOWN, _shutdown_error(death, "process killed because of another task running in it")
        case _:
            assert_never(death)


def poison_error(last_crash: TaskError, *, crash_count: int, causes: Sequence[str]) -> TaskError:
    """Return the final error of a task that crashed too often; `causes` are the messages of its crashes."""
    return TaskError(
        error_code=OperationalErrorCode.POISON_TASK,
        message=f"crashed {crash_count} times, last: {last_crash.message}",
        data=last_crash.data | {"crash_count": crash_count, "causes": list(causes)},
    )


def _shutdown_error(kill: Kill, message: str) -> TaskError:
    return TaskError(error_code=OperationalErrorCode.SHUTDOWN, message=message, data={"pid": kill.pid})


def _crash_data(crash: Crash) -> dict[str, object]:
    """Signal and exit status only where the child caused them; after the worker's own SIGKILL they mean nothing."""
    data: dict[str, object] = {"cause": crash.cause.value, "pid": crash.pid}
    if crash.cause is ExitCause.CHILD_SIGNAL:
        data["signal"] = _signal_name(crash.signal)
    elif crash.cause is ExitCause.CHILD_EXIT:
        data["exit_status"] = crash.exit_status
    return data


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:  # a real-time signal, or one unknown on this system
        return f"signal {number}"
