"""What becomes of the tasks that a child held when it ended.

Only what had begun is settled; the rest of a chunk goes back untouched. A death of its own is a crash for everything
that ran inside; a child that we kill costs its neighbours no crash. Delays count from the moment the outcome is stored,
on the database's clock: whether they end before `good_until` is for the statement to say.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.retry import delay_seconds
from horsies.model.task_error import TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.codes import BuiltInTaskCode
    from horsies.model.retry import RetryPolicy


class Cause(StrEnum):
    """How a child came to its end without being told to; `data.cause` of WORKER_CRASHED."""

    CHILD_SIGNAL = "CHILD_SIGNAL"
    CHILD_EXIT = "CHILD_EXIT"
    CHILD_MEMORY = "CHILD_MEMORY"
    CHILD_PROTOCOL = "CHILD_PROTOCOL"
    HEARTBEAT_LOST = "HEARTBEAT_LOST"


class KillReason(StrEnum):
    """Why a worker ended a child on purpose, which is never a crash."""

    TIMEOUT = "time-out"
    """A task in it ran longer than its `timeout_ms`."""
    ROW_LOST = "row lost"
    """A task in it is no longer ours: an operator asked for its end, or another hand has moved its row."""
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A child that died: `signal` for CHILD_SIGNAL, `exit_status` for CHILD_EXIT."""

    cause: Cause
    pid: int
    signal: int | None = None
    exit_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A child that we ended, and for the sake of which task (its id) where it was for one."""

    reason: KillReason
    pid: int
    task_id: str | None = None


Death: TypeAlias = Crash | Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A task in the hands of a child, as its row was when it was claimed."""

    task_id: str
    has_begun: bool
    policy: RetryPolicy | None = None
    retry_count: int = 0
    crash_count: int = 0
    timeout_ms: int | None = None
    earlier_crashes: Sequence[str] = field(default=())
    """The messages of its earlier attempts that crashed, oldest first."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """It never began: PENDING again, and nothing is counted."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Its row has gone to another hand: there is nothing to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The attempt failed with `error`; the task runs again so many seconds later, or never where that is None."""

    error: TaskError
    retry_delay_s: float | None
    is_crash: bool = False
    failed_reason: str | None = None


Fate: TypeAlias = HandBack | Drop | Settle


def fate_of(task: HeldTask, death: Death, *, max_crashes: int, jitter: float) -> Fate:
    """What to write for a task whose child has ended; `jitter` is a draw from 0..1."""
    if not task.has_begun:
        return HandBack()
    match death:
        case Crash():
            return _crashed(task, death, max_crashes=max_crashes, jitter=jitter)
        case Kill(task_id=task.task_id, reason=KillReason.ROW_LOST):
            return Drop()
        case Kill(task_id=task.task_id, reason=KillReason.TIMEOUT):
            return _timed_out(task, jitter=jitter)
        case Kill():
            return _cut(task, death)
        case _:
            assert_never(death)


def retry_delay_s(policy: RetryPolicy | None, retry_count: int, code: str | None, *, jitter: float) -> float | None:
    """Seconds until the next attempt after a failure with `code`; None where the policy has none for it."""
    if policy is None or code not in policy.auto_retry_for or retry_count >= policy.max_retries:
        return None
    return delay_seconds(policy, retry_count + 1, jitter)


def crash_message(crash: Crash) -> str:
    """The death in words, its cause first; what an attempt row keeps of it."""
    match crash.cause:
        case Cause.CHILD_SIGNAL:
            words = f"killed by {_signal_name(crash.signal)}"
        case Cause.CHILD_EXIT:
            words = f"left with status {crash.exit_status}"
        case Cause.CHILD_MEMORY:
            words = "out of memory"
        case Cause.CHILD_PROTOCOL:
            words = "broke off the talk with its worker"
        case Cause.HEARTBEAT_LOST:
            words = "silent and idle for too long"
        case _:
            assert_never(crash.cause)
    return f"{crash.cause}: process {crash.pid} {words}"


def interruption(reason: str) -> str:
    """The `failed_reason` of a task that goes on after its process or worker did not."""
    return f"recovered after worker interruption: {reason}"


def _crashed(task: HeldTask, crash: Crash, *, max_crashes: int, jitter: float) -> Settle:
    if task.crash_count + 1 >= max_crashes:
        return _poisoned(task, crash)
    code = OperationalErrorCode.WORKER_CRASHED
    return _settled(
        TaskError(error_code=code, message=crash_message(crash), data=_evidence(crash)),
        delay_s=retry_delay_s(task.policy, task.retry_count, code, jitter=jitter),
        reason="CHILD_DIED",
        is_crash=True,
    )


def _poisoned(task: HeldTask, crash: Crash) -> Settle:
    crashes = task.crash_count + 1
    causes = [*task.earlier_crashes, crash_message(crash)]
    error = TaskError(
        error_code=OperationalErrorCode.POISON_TASK,
        message=f"crashed {crashes} times, the last time {crash_message(crash)}",
        data=_evidence(crash) | {"crash_count": crashes, "causes": causes},
    )
    return _settled(error, delay_s=None, reason="CHILD_DIED", is_crash=True)


def _timed_out(task: HeldTask, *, jitter: float) -> Settle:
    code = OutcomeCode.TASK_TIMEOUT
    error = _error(code, f"ran longer than its timeout of {task.timeout_ms} ms", timeout_ms=task.timeout_ms)
    return _settled(error, delay_s=retry_delay_s(task.policy, task.retry_count, code, jitter=jitter))


def _cut(task: HeldTask, kill: Kill) -> Settle:
    is_neighbour = kill.reason is not KillReason.SHUTDOWN
    why = "cut together with a neighbour in its process" if is_neighbour else "cut by a stopping worker"
    error = _error(OperationalErrorCode.SHUTDOWN, why, pid=kill.pid)
    return _settled(error, delay_s=_delay_after_shutdown(task), reason="SHUTDOWN")


def _delay_after_shutdown(task: HeldTask) -> float | None:
    """Due at once where the policy allows for shutdowns or for crashes; a retry is spent all the same."""
    codes = (OperationalErrorCode.SHUTDOWN, OperationalErrorCode.WORKER_CRASHED)
    may_retry = any(retry_delay_s(task.policy, task.retry_count, code, jitter=0.0) is not None for code in codes)
    return 0.0 if may_retry else None


def _settled(error: TaskError, *, delay_s: float | None, reason: str | None = None, is_crash: bool = False) -> Settle:
    """An interrupted task that goes on says in its row by what; one that has ended says so in its error."""
    failed_reason = None if reason is None else error.message if delay_s is None else interruption(reason)
    return Settle(error=error, retry_delay_s=delay_s, is_crash=is_crash, failed_reason=failed_reason)


def _error(code: BuiltInTaskCode, message: str, **data: object) -> TaskError:
    return TaskError(error_code=code, message=message, data=data)


def _evidence(crash: Crash) -> dict[str, object]:
    facts = {"signal": _signal_name(crash.signal) if crash.signal else None, "exit_status": crash.exit_status}
    known = {name: value for name, value in facts.items() if value is not None}
    return {"cause": crash.cause.value, "pid": crash.pid, **known}


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:  # a real-time signal, or one of another system
        return f"signal {number}"
