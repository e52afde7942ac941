"""How a task asks to be run again, how long it then waits, and whether it is."""

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
from horsies.model.settings.base import format_path
from horsies.model.task import has_expired
from horsies.model.task_result import NEVER_RETRIED, is_upper_snake
from horsies.model.text import describe_validation_error

MAX_JITTER = 0.25
MAX_RETRIES = 20

_CODE_RULE = "must be in UPPER_SNAKE (exception_mapper gives exception classes such codes)"


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
    # Given and written as a list, kept as a tuple: a policy is shared by all sends of its task and must not change.
    FrozenList = Annotated[list[T], AfterValidator(tuple), PlainSerializer(list)]


class RetryPolicy(BaseModel):
    """When to run a failed task again: which codes, how often, how many seconds apart.

    The policy is stored with each task, so it is obeyed even where the task's code is not at hand. One that cannot
    work raises a `TaskDefinitionError`, a `ValueError`, that tells every fault of it in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retries: Annotated[StrictInt, Field(ge=1, le=MAX_RETRIES)] = 3
    intervals: Annotated[FrozenList[Interval], Field(min_length=1, max_length=MAX_RETRIES)] = (60, 300, 900)
    # Checked as a field and not as a whole, so that its fault is reported together with those of the others.
    backoff_strategy: Annotated[Literal["fixed", "exponential"], Field(validate_default=True)] = "fixed"
    jitter: StrictBool = True
    max_delay_seconds: Annotated[StrictInt, Field(gt=0)] | None = None
    auto_retry_for: Annotated[FrozenList[RetryableCode], Field(min_length=1)]

    if not TYPE_CHECKING:  # checkers read the parameters off the fields

        def __init__(self, /, **given: Any) -> None:
            try:
                super().__init__(**given)
            except ValidationError as invalid:
                raise _invalid_policy(invalid) from None

        # A policy inside another model keeps its place among that model's faults.
        __init__.__pydantic_base_init__ = True

    @field_validator("backoff_strategy")
    @classmethod
    def _check_number_of_intervals(cls, strategy: str, info: ValidationInfo) -> str:
        retries, intervals = info.data.get("max_retries"), info.data.get("intervals")
        if strategy == "exponential" and intervals is not None and len(intervals) != 1:
            raise ValueError("exponential takes exactly one of intervals, the base")
        if strategy == "fixed" and None not in (retries, intervals) and len(intervals or ()) != retries:
            raise ValueError("fixed takes as many intervals as max_retries")
        return strategy

    @classmethod
    def fixed(cls, intervals: Sequence[int], *, auto_retry_for: Sequence[str], jitter: bool = True) -> RetryPolicy:
        """One retry for each interval, in seconds."""
        return cls(
            # Within its range, so that too few or too many intervals are the fault of the intervals alone.
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
    ("intervals", "list_type"): "must be a list of pauses in seconds",
    ("auto_retry_for", "list_type"): "must be a list of codes",
    ("auto_retry_for", "string_type"): _CODE_RULE,
}


def _message(finding: ErrorDetails) -> str:
    """What our own validators say, word for word; all else as for any value, where there are no better words."""
    said = finding.get("ctx", {}).get("error") or _MESSAGES.get((str(finding["loc"][0]), finding["type"]))
    return describe_validation_error(finding) if said is None else str(said)


def backoff_delay_s(policy: RetryPolicy, retry_number: int, jitter: float) -> float:
    """Seconds to wait before retry `retry_number` (from 1); `jitter` is a draw from 0..1 and never shortens.

    Past the last interval the last one goes on, for a task whose count was set by hand.
    """
    if retry_number < 1:
        raise ValueError("retries are counted from 1")
    if not 0.0 <= jitter <= 1.0:
        raise ValueError("jitter is drawn from 0..1")
    if policy.backoff_strategy == "exponential":
        delay = float(policy.intervals[0] * 2 ** (retry_number - 1))
    else:
        delay = float(policy.intervals[min(retry_number, len(policy.intervals)) - 1])
    if policy.jitter:
        delay *= 1.0 + MAX_JITTER * jitter
    return delay if policy.max_delay_seconds is None else min(delay, float(policy.max_delay_seconds))


class GiveUpReason(StrEnum):
    """Why there is no further attempt."""

    NO_POLICY = "no retry policy"
    NOT_LISTED = "code not listed"
    NO_RETRIES_LEFT = "no retries left"
    TOO_LATE = "due at or after good_until"


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Run it again, not before `due_at`; one retry is spent."""

    due_at: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It stays failed, with the code it failed with."""

    reason: GiveUpReason


RetryDecision: TypeAlias = RetryAt | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryState:
    """What a task's row says about running it again."""

    policy: RetryPolicy | None
    retry_count: int
    good_until: datetime | None = None


def decide_retry(
    state: RetryState, code: str | None, *, now: datetime, jitter: float, not_before: datetime | None = None
) -> RetryDecision:
    """Retry when the code is listed, retries are left, and the due time comes before `good_until`.

    The due time is the policy's delay from now, or `not_before` where that is later.
    """
    if state.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if code not in state.policy.auto_retry_for:
        return GiveUp(GiveUpReason.NOT_LISTED)
    delay = backoff_delay_s(state.policy, state.retry_count + 1, jitter)
    due_at = now + timedelta(seconds=delay)
    return retry_if_possible(state, due_at if not_before is None else max(due_at, not_before))


def retry_if_possible(state: RetryState, due_at: datetime) -> RetryDecision:
    """Retry at due_at whatever the code, as long as retries are left and it comes before `good_until`."""
    if state.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if state.retry_count >= state.policy.max_retries:
        return GiveUp(GiveUpReason.NO_RETRIES_LEFT)
    if has_expired(state.good_until, due_at):
        return GiveUp(GiveUpReason.TOO_LATE)
    return RetryAt(due_at)
