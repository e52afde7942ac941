"""How a task asks to be run again, and how long it then waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
)

from horsies.model.codes import NEVER_RETRIED, is_upper_snake

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_JITTER = 0.25


def _check_listed(code: str) -> str:
    if not is_upper_snake(code):
        raise ValueError("codes are written in UPPER_SNAKE; map an exception class to one with exception_mapper")
    if code in NEVER_RETRIED:
        raise ValueError(f"{code} is never retried")
    return code


Interval = Annotated[StrictInt, Field(ge=1, le=86_400)]
ListedCode = Annotated[str, AfterValidator(_check_listed)]


class RetryPolicy(BaseModel):
    """When to run a failed task again: which codes, how often, how many seconds apart.

    The policy is stored with each task, so it is obeyed even where the task's code is not at hand.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_retries: Annotated[StrictInt, Field(ge=1, le=20)] = 3
    intervals: Annotated[list[Interval], Field(min_length=1, max_length=20)] = [60, 300, 900]
    # Checked as a field and not as a whole, so that its fault is reported together with those of the others.
    backoff_strategy: Annotated[Literal["fixed", "exponential"], Field(validate_default=True)] = "fixed"
    jitter: StrictBool = True
    max_delay_seconds: Annotated[StrictInt, Field(gt=0)] | None = None
    auto_retry_for: Annotated[list[ListedCode], Field(min_length=1)]

    @field_validator("backoff_strategy")
    @classmethod
    def _check_number_of_intervals(cls, strategy: str, info: ValidationInfo) -> str:
        retries, intervals = info.data.get("max_retries"), info.data.get("intervals")
        if strategy == "exponential" and intervals is not None and len(intervals) != 1:
            raise ValueError("exponential takes exactly one interval, the base")
        if strategy == "fixed" and None not in (retries, intervals) and len(intervals or ()) != retries:
            raise ValueError("fixed takes one interval for each retry: len(intervals) must equal max_retries")
        return strategy

    @classmethod
    def fixed(cls, intervals: Sequence[int], *, auto_retry_for: Sequence[str], jitter: bool = True) -> RetryPolicy:
        """One retry for each interval, in seconds."""
        return cls(
            max_retries=len(intervals), intervals=list(intervals), jitter=jitter, auto_retry_for=list(auto_retry_for)
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
            intervals=[base_seconds],
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
            auto_retry_for=list(auto_retry_for),
        )


def delay_seconds(policy: RetryPolicy, retry_number: int, jitter: float) -> float:
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
