"""How a child process ended, and the error stored for a task that was running in it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from horsies.model.retry import CRASH, SHUTDOWN, TIMEOUT, Cause
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
    """A child that the worker killed; `task_id` is the task that caused it, if any."""

    reason: KillReason
    pid: int
    task_id: str | None = None


Death: TypeAlias = Crash | Kill


def interruption(death: Death, *, task_id: str, timeout_ms: int | None) -> tuple[Cause, TaskError]:
    """Return why the attempt of a task failed that was running in a child that ended."""
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
