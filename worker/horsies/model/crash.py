"""What becomes of the tasks that a child held when it ended.

Only what had begun is settled; the rest of a chunk goes back untouched. A death of its own is a crash for everything
that ran inside; a child that we kill costs its neighbours no crash. What only the row can say is left to the statement
that writes: whether a delay ends before `good_until`, on the database's clock, and whether a crash is one too many.
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
    """Why a child is no more; the first five are crashes, and `data.cause` of WORKER_CRASHED."""

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
    """Why a worker ended a child on purpose, which is never a crash."""

    TIMEOUT = "time-out"
    """A task in it ran longer than its `timeout_ms`."""
    ROW_LOST = "row lost"
    """A task in it is no longer ours: an operator asked for its end, or another hand has moved its row."""
    REQUEUED = "requeued"
    """An operator wants a task in it to start again."""
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A child that died: `signal` for CHILD_SIGNAL, `exit_status` for CHILD_EXIT, `why` in words for all."""

    cause: ExitCause
    pid: int
    why: str
    signal: int | None = None
    exit_status: int | None = None

    @property
    def message(self) -> str:
        """What an attempt row keeps of it."""
        return f"{self.cause}: process {self.pid} {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A child that we ended, and for the sake of which task (its id) where it was for one."""

    reason: KillReason
    pid: int
    task_id: str | None = None


Death: TypeAlias = Crash | Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTask:
    """A task in the hands of a child, as its row was when it was claimed."""

    task_id: str
    has_begun: bool
    retry_policy: RetryPolicy | None = None
    retry_count: int = 0
    crash_count: int = 0
    timeout_ms: int | None = None
    earlier_crashes: Sequence[str] = field(default=())
    """The messages of its earlier attempts that crashed, oldest first."""


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """It never began: PENDING again, and nothing is counted."""


@dataclass(frozen=True, slots=True)
class DropTask:
    """Its row has gone to another hand: there is nothing to write."""


@dataclass(frozen=True, slots=True)
class RequeueTask:
    """It was stopped at an operator's word: PENDING again with its attempt, and no retry is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt:
    """The attempt failed with `error`; the task runs again so many seconds later, or never where that is None."""

    error: TaskError
    retry_delay_s: float | None
    failed_reason: str | None = None
    poison_error: TaskError | None = None
    """For a crash, and only then: what the task ends with, whatever its policy, where it was the last one allowed."""

    @property
    def is_crash(self) -> bool:
        return self.poison_error is not None


Resolution: TypeAlias = ReleaseTask | DropTask | RequeueTask | FailAttempt


def resolve_task(task: AssignedTask, death: Death, *, jitter: float) -> Resolution:
    """What to write for a task whose child has ended; `jitter` is a draw from 0..1."""
    if not task.has_begun:
        return ReleaseTask()
    match death:
        case Crash():
            return _fail_crashed(task, death, jitter=jitter)
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
    """Seconds until the next attempt after a failure with `code`; None where the policy has none for it."""
    if policy is None or code not in policy.auto_retry_for or retry_count >= policy.max_retries:
        return None
    return backoff_delay_s(policy, retry_count + 1, jitter)


def interruption_reason(reason: str) -> str:
    """The `failed_reason` of a task that goes on after its process or worker did not."""
    return f"recovered after worker interruption: {reason}"


def _fail_crashed(task: AssignedTask, crash: Crash, *, jitter: float) -> FailAttempt:
    code = OperationalErrorCode.WORKER_CRASHED
    delay_s = retry_delay_s(task.retry_policy, task.retry_count, code, jitter=jitter)
    return FailAttempt(
        error=TaskError(error_code=code, message=crash.message, data=_crash_data(crash)),
        retry_delay_s=delay_s,
        failed_reason=crash.message if delay_s is None else interruption_reason("CHILD_DIED"),
        poison_error=_poison(task, crash),
    )


def _poison(task: AssignedTask, crash: Crash) -> TaskError:
    crashes = task.crash_count + 1
    return TaskError(
        error_code=OperationalErrorCode.POISON_TASK,
        message=f"crashed {crashes} times, last by {crash.message}",
        data=_crash_data(crash) | {"crash_count": crashes, "causes": [*task.earlier_crashes, crash.message]},
    )


def _fail_timed_out(task: AssignedTask, *, jitter: float) -> FailAttempt:
    code, limit_ms = OutcomeCode.TASK_TIMEOUT, task.timeout_ms
    message = f"ran longer than its timeout of {limit_ms} ms"
    return FailAttempt(
        error=TaskError(error_code=code, message=message, data={"timeout_ms": limit_ms}),
        retry_delay_s=retry_delay_s(task.retry_policy, task.retry_count, code, jitter=jitter),
    )


def _fail_interrupted(task: AssignedTask, kill: Kill) -> FailAttempt:
    is_neighbour = kill.reason is not KillReason.SHUTDOWN
    why = "cut together with a neighbour in its process" if is_neighbour else "cut by a stopping worker"
    delay_s = _delay_after_shutdown(task)
    return FailAttempt(
        error=TaskError(error_code=OperationalErrorCode.SHUTDOWN, message=why, data={"pid": kill.pid}),
        retry_delay_s=delay_s,
        failed_reason=why if delay_s is None else interruption_reason("SHUTDOWN"),
    )


def _delay_after_shutdown(task: AssignedTask) -> float | None:
    """Due at once where the policy allows for shutdowns or for crashes; a retry is spent all the same."""
    codes = (OperationalErrorCode.SHUTDOWN, OperationalErrorCode.WORKER_CRASHED)
    may_retry = any(retry_delay_s(task.retry_policy, task.retry_count, code, jitter=0.0) is not None for code in codes)
    return 0.0 if may_retry else None


def _crash_data(crash: Crash) -> dict[str, object]:
    """The signal and the exit status only where they were the child's own doing; our SIGKILL proves nothing."""
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
    except ValueError:  # a real-time signal, or one of another system
        return f"signal {number}"
