"""Whether a task that failed is run again, as a decision over values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from horsies.model.codes import OperationalErrorCode
from horsies.model.expiry import has_expired
from horsies.model.retry import delay_seconds

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.retry import RetryPolicy


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


Verdict: TypeAlias = RetryAt | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """What a task's row says about running it again."""

    policy: RetryPolicy | None
    retry_count: int
    good_until: datetime | None = None


def decide_retry(
    chances: Chances, code: str | None, *, now: datetime, jitter: float, not_before: datetime | None = None
) -> Verdict:
    """Retry when the code is listed, retries are left, and the due time comes before `good_until`.

    The due time is the policy's delay from now, or `not_before` where that is later.
    """
    if chances.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if code not in chances.policy.auto_retry_for:
        return GiveUp(GiveUpReason.NOT_LISTED)
    delay = delay_seconds(chances.policy, chances.retry_count + 1, jitter)
    due_at = now + timedelta(seconds=delay)
    return retry_if_possible(chances, due_at if not_before is None else max(due_at, not_before))


def decide_after_shutdown(chances: Chances, *, now: datetime) -> Verdict:
    """A task cut by a stopping worker is due at once where its policy allows for shutdowns or for crashes."""
    if chances.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if not {OperationalErrorCode.SHUTDOWN, OperationalErrorCode.WORKER_CRASHED} & set(chances.policy.auto_retry_for):
        return GiveUp(GiveUpReason.NOT_LISTED)
    return retry_if_possible(chances, now)


def retry_if_possible(chances: Chances, due_at: datetime) -> Verdict:
    """Retry at due_at whatever the code, as long as retries are left and it comes before `good_until`."""
    if chances.policy is None:
        return GiveUp(GiveUpReason.NO_POLICY)
    if chances.retry_count >= chances.policy.max_retries:
        return GiveUp(GiveUpReason.NO_RETRIES_LEFT)
    if has_expired(chances.good_until, due_at):
        return GiveUp(GiveUpReason.TOO_LATE)
    return RetryAt(due_at)
