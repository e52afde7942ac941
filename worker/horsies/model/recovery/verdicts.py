"""What is decided about a task whose owner fell silent, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.codes import BuiltInTaskCode


class RecoveryReason(StrEnum):
    """Why a task was interrupted."""

    HEARTBEAT_LOST = "HEARTBEAT_LOST"
    OWNER_LOST = "OWNER_LOST"
    OWNER_MISSING = "OWNER_MISSING"
    OWNER_STOPPED = "OWNER_STOPPED"
    CHILD_DIED = "CHILD_DIED"
    SHUTDOWN = "SHUTDOWN"


class Decision(StrEnum):
    """The kinds of verdicts, in the words of reports and of `--json`."""

    REQUEUE = "requeue"
    RETRY = "retry"
    FAIL = "fail"
    EXPIRE = "expire"
    HOLD = "hold"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """It had not begun: back to the queue, due at `at`, with `retry_count` retries spent."""

    decision: ClassVar[Decision] = Decision.REQUEUE

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed, and another is due at `at`, with `retry_count` retries spent by then."""

    decision: ClassVar[Decision] = Decision.RETRY

    reason: RecoveryReason
    at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """It ends here: crashed, crashed too often, or not to be started again because its run was paused or cancelled."""

    decision: ClassVar[Decision] = Decision.FAIL

    reason: RecoveryReason
    code: BuiltInTaskCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """It was claimed, not begun, and is past its good_until."""

    decision: ClassVar[Decision] = Decision.EXPIRE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hook wants it left alone until then."""

    decision: ClassVar[Decision] = Decision.HOLD

    until: datetime
    is_new: bool = False
    """Said just now, and not yet on the row."""
    why: ClassVar[str] = "hook_skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Nothing to do: it is within its limit, the judge has not listened long enough, or its settings forbid it."""

    decision: ClassVar[Decision] = Decision.LEAVE

    why: Literal["fresh", "amnesty", "disabled"]
    until: datetime | None = None
    """When an amnesty is over for this task."""


Verdict: TypeAlias = Requeue | Retry | Fail | Expire | Hold | Leave
"""Each has its `decision`."""

Settling: TypeAlias = Requeue | Retry | Fail | Expire
"""Those that move a row."""
