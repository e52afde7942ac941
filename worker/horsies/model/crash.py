"""What happens to the tasks of a child process that exited.

Tasks that had not begun are released. A crash of the child counts as a crash for every task that ran in it; a kill by
the worker does not. Two checks are left to the SQL statement that stores the outcome: whether the retry is due before
`good_until` (database clock), and whether this crash reaches `max_crashes`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, assert_never

from horsies.model.retry import RetryPolicy, backoff_delay_s
from horsies.model.task_result import OperationalErrorCode, OutcomeCode, TaskError


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

    @property
    def message(self) -> str:
        """The error message stored with the attempt."""
        return f"{self.cause}: process {self.pid} {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A child that the worker killed; `task_id` is the task that caused it, if any."""

    reason: KillReason
    pid: int
    task_id: str | None = None


Death: TypeAlias = Crash | Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTask:
    """A task assigned to a child, with the values its row had when it was claimed."""

    task_id: str
    has_begun: bool
    retry_policy: RetryPolicy | None = None
    retry_count: int = 0
    crash_count: int = 0
    timeout_ms: int | None = None
    earlier_crashes: Sequence[str] = field(default=())
    """Messages of its earlier crashes, oldest first."""


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """The task had not begun: back to PENDING, no attempt and no retry counted."""


@dataclass(frozen=True, slots=True)
class DropTask:
    """The worker no longer owns the row: store nothing."""


@dataclass(frozen=True, slots=True)
class RequeueTask:
    """An operator stopped it: back to PENDING; the attempt is stored, no retry is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt:
    """The attempt failed with `error`; the task is retried after `retry_delay_s`, or fails if that is None."""

    error: TaskError
    retry_delay_s: float | None
    failed_reason: str | None = None
    poison_error: TaskError | None = None
    """Set for crashes only: the task's final error if this crash reaches `max_crashes`, regardless of retries."""

    @property
    def is_crash(self) -> bool:
        return self.poison_error is not None


Resolution: TypeAlias = ReleaseTask | DropTask | RequeueTask | FailAttempt


def resolve_task(task: AssignedTask, death: Death, *, jitter: float) -> Resolution:
    """Decide what to store for a task whose child exited; `jitter` is a random number from 0 to 1."""
    if not task.has_begun:
        return ReleaseTask()
    match death:
        case Crash():
            return _fail_crashed(task, death, jitter=jitter)
        # The next three apply only to the task that caused the kill, not to others that ran in the same child.
        case Kill(task_id=task.task_id, reason=KillReason.ROW_LOST):
            return DropTask()
        case Kill(task_id=task.task_id, reason=KillReason.REQUEUED):
            return RequeueTask()
        case Kill(task_id=task.task_id, reason=KillReason.TIMEOUT):
            return _fail_timed_out(task, jitter=jitter)
        case Kill():
            return _fail_interrupted(task, death)
        case _:
            assert_never(death)


def retry_delay_s(policy: RetryPolicy | None, retry_count: int, code: str | None, *, jitter: float) -> float | None:
    """Return the seconds until the retry after a failure with `code`; None if the policy allows no retry."""
    if policy is None or code not in policy.auto_retry_for or retry_count >= policy.max_retries:
        return None
    return backoff_delay_s(policy, retry_count + 1, jitter)


def interruption_reason(reason: str) -> str:
    """The `failed_reason` of a task that is retried after its process or worker was lost."""
    return f"recovered after worker interruption: {reason}"


def _fail_crashed(task: AssignedTask, crash: Crash, *, jitter: float) -> FailAttempt:
    code, data = OperationalErrorCode.WORKER_CRASHED, _crash_data(crash)
    delay_s = retry_delay_s(task.retry_policy, task.retry_count, code, jitter=jitter)
    crash_count = task.crash_count + 1
    return FailAttempt(
        error=TaskError(error_code=code, message=crash.message, data=data),
        retry_delay_s=delay_s,
        failed_reason=crash.message if delay_s is None else interruption_reason("CHILD_DIED"),
        # Built for every crash: the SQL statement decides whether this one reaches `max_crashes`.
        poison_error=TaskError(
            error_code=OperationalErrorCode.POISON_TASK,
            message=f"crashed {crash_count} times, last: {crash.message}",
            data=data | {"crash_count": crash_count, "causes": [*task.earlier_crashes, crash.message]},
        ),
    )


def _fail_timed_out(task: AssignedTask, *, jitter: float) -> FailAttempt:
    code, limit_ms = OutcomeCode.TASK_TIMEOUT, task.timeout_ms
    message = f"ran longer than its timeout of {limit_ms} ms"
    return FailAttempt(
        error=TaskError(error_code=code, message=message, data={"timeout_ms": limit_ms}),
        retry_delay_s=retry_delay_s(task.retry_policy, task.retry_count, code, jitter=jitter),
        # No poison error: the worker killed the child on purpose, so this is not a crash.
    )


def _fail_interrupted(task: AssignedTask, kill: Kill) -> FailAttempt:
    """Fail a task that was not the cause of the kill."""
    is_shutdown = kill.reason is KillReason.SHUTDOWN
    why = "interrupted by worker shutdown" if is_shutdown else "process killed because of another task running in it"
    # Due immediately if the policy lists either code; a retry is used all the same.
    codes = (OperationalErrorCode.SHUTDOWN, OperationalErrorCode.WORKER_CRASHED)
    may_retry = any(retry_delay_s(task.retry_policy, task.retry_count, code, jitter=0.0) is not None for code in codes)
    delay_s = 0.0 if may_retry else None
    return FailAttempt(
        error=TaskError(error_code=OperationalErrorCode.SHUTDOWN, message=why, data={"pid": kill.pid}),
        retry_delay_s=delay_s,
        failed_reason=why if delay_s is None else interruption_reason("SHUTDOWN"),
    )


def _crash_data(crash: Crash) -> dict[str, object]:
    """Signal and exit status only where the child caused them; after the worker's own SIGKILL they mean nothing."""
    common: dict[str, object] = {"cause": crash.cause.value, "pid": crash.pid}
    match crash.cause:
        case ExitCause.CHILD_SIGNAL:
            return common | {"signal": _signal_name(crash.signal)}
        case ExitCause.CHILD_EXIT:
            return common | {"exit_status": crash.exit_status}
        case _:
            return common


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:  # a real-time signal, or one unknown on this system
        return f"signal {number}"
