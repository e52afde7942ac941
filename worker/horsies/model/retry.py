"""Retry policies, backoff delays and the retry decision."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

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
from horsies.model.task import has_expired
from horsies.model.task_result import NEVER_RETRIED, is_upper_snake
from horsies.model.text import describe_validation_error, format_path

MAX_JITTER = 0.25
MAX_RETRIES = 20

_CODE_RULE = "must be in UPPER_SNAKE (use exception_mapper to map exception classes to codes)"


def _check_retryable(code: str) -> str:
    if not is_upper_snake(code):
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
                raise _invalid_policy(invalid) from None

        # Inside another model, pydantic then reports the policy's faults together with that model's.
        __init__.__pydantic_base_init__ = True

    @field_validator("backoff_strategy")
    @classmethod
    def _check_number_of_intervals(cls, strategy: str, info: ValidationInfo) -> str:
        retries, intervals = info.data.get("max_retries"), info.data.get("intervals")
        if strategy == "exponential" and intervals is not None and len(intervals) != 1:
            raise ValueError("exponential needs exactly one interval, the base delay")
        if strategy == "fixed" and None not in (retries, intervals) and len(intervals or ()) != retries:
            raise ValueError("fixed needs as many intervals as max_retries")
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


def _invalid_policy(invalid: ValidationError) -> TaskDefinitionError:
    findings = invalid.errors(include_url=False, include_input=False)
    return TaskDefinitionError(
        "RetryPolicy: " + "; ".join(f"{format_path(finding['loc'])}: {_message(finding)}" for finding in findings),
        code=ErrorCode.TASK_INVALID_OPTIONS,
        location=SourceLocation.of_caller(),
    )


_MESSAGES = {
    ("intervals", "list_type"): "must be a list of delays in seconds",
    ("auto_retry_for", "list_type"): "must be a list of error codes",
    ("auto_retry_for", "string_type"): _CODE_RULE,
}


def _message(finding: ErrorDetails) -> str:
    """Prefer the message of our own validators, then the specific ones above, then the general description."""
    message = finding.get("ctx", {}).get("error") or _MESSAGES.get((str(finding["loc"][0]), finding["type"]))
    return describe_validation_error(finding) if message is None else str(message)


def backoff_delay_s(policy: RetryPolicy, retry_number: int, jitter: float) -> float:
    """Return the delay before retry `retry_number` (from 1); `jitter` is random, from 0 to 1, and only lengthens it."""
    if retry_number < 1:
        raise ValueError(f"retry_number must be at least 1, got {retry_number}")
    if not 0.0 <= jitter <= 1.0:
        raise ValueError(f"jitter must be from 0 to 1, got {jitter}")
    if policy.backoff_strategy == "exponential":
        delay = float(policy.intervals[0] * 2 ** (retry_number - 1))
    else:
        # Past the last interval, repeat it: callers check max_retries afterwards, and a hook may set any count.
        delay = float(policy.intervals[min(retry_number, len(policy.intervals)) - 1])
    if policy.jitter:
        delay *= 1.0 + MAX_JITTER * jitter
    return delay if policy.max_delay_seconds is None else min(delay, float(policy.max_delay_seconds))


class GiveUpReason(StrEnum):
    """Why a task is not retried."""

    NO_POLICY = "no retry policy"
    NOT_LISTED = "code not listed"
    NO_RETRIES_LEFT = "no retries left"
    TOO_LATE = "due at or after good_until"


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Retry at `due_at`; one retry is used."""

    due_at: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not retry; the task fails with its error code."""

    reason: GiveUpReason


RetryDecision: TypeAlias = RetryAt | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """The fields of a task's row that decide about a retry."""

    policy: RetryPolicy | None
    retry_count: int
    good_until: datetime | None = None


def decide_retry(
    state: RetryState, code: str | None, *, now: datetime, jitter: float, not_before: datetime | None = None
) -> RetryDecision:
    """Retry if the code is listed, retries are left and the retry is due before `good_until`.

    It is due after the policy's delay, or at `not_before` if that is later.
    """
    if state.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if code not in state.policy.auto_retry_for:
        return GiveUp(GiveUpReason.NOT_LISTED)
    delay = backoff_delay_s(state.policy, state.retry_count + 1, jitter)
    due_at = now + timedelta(seconds=delay)
    return retry_if_possible(state, due_at if not_before is None else max(due_at, not_before))


def retry_if_possible(state: RetryState, due_at: datetime) -> RetryDecision:
    """Retry at `due_at` for any error code, if retries are left and it is before `good_until`."""
    if state.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if state.retry_count >= state.policy.max_retries:
        return GiveUp(GiveUpReason.NO_RETRIES_LEFT)
    if has_expired(state.good_until, due_at):
        return GiveUp(GiveUpReason.TOO_LATE)
    return RetryAt(due_at)
