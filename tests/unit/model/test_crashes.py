"""The errors of tasks whose child exited, and which of them count as crashes."""

from __future__ import annotations

import signal

import pytest

from horsies.model.retry import (
    CRASH,
    SHUTDOWN,
    TIMEOUT,
    Cause,
    Crash,
    Death,
    ExitCause,
    Kill,
    KillReason,
    interruption,
    poison_error,
)
from horsies.model.task_result import OperationalErrorCode, TaskError

SEGFAULT = Crash(cause=ExitCause.CHILD_SIGNAL, pid=7, signal=signal.SIGSEGV, why="killed by SIGSEGV")
STOPPED = Kill(reason=KillReason.SHUTDOWN, pid=7)


def killed_for(task_id: str, reason: KillReason = KillReason.TIMEOUT) -> Kill:
    return Kill(reason=reason, pid=7, task_id=task_id)


def interrupted_by(death: Death) -> tuple[Cause, TaskError]:
    return interruption(death, task_id="mine", timeout_ms=500)


@pytest.mark.parametrize(
    ("cause", "details", "data"),
    [
        (ExitCause.CHILD_SIGNAL, {"signal": signal.SIGSEGV}, {"signal": "SIGSEGV"}),
        (ExitCause.CHILD_SIGNAL, {"signal": 40}, {"signal": "signal 40"}),
        (ExitCause.CHILD_EXIT, {"exit_status": 3}, {"exit_status": 3}),
        (ExitCause.CHILD_EXIT, {"exit_status": 0}, {"exit_status": 0}),
        (ExitCause.CHILD_MEMORY, {"exit_status": 71}, {}),
        (ExitCause.CHILD_PROTOCOL, {"signal": signal.SIGKILL}, {}),
        (ExitCause.HEARTBEAT_LOST, {"signal": signal.SIGKILL}, {}),
    ],
)
def test_crash_error_describes_how_the_child_died(
    cause: ExitCause, details: dict[str, int], data: dict[str, object]
) -> None:
    retry_cause, error = interrupted_by(Crash(cause=cause, pid=7, why="crashed", **details))

    assert retry_cause is CRASH
    assert error.error_code == OperationalErrorCode.WORKER_CRASHED
    assert error.message == f"{cause}: process 7 crashed"
    assert error.data == {"cause": cause.value, "pid": 7, **data}


@pytest.mark.parametrize(
    ("death", "cause", "message"),
    [
        (killed_for("mine"), TIMEOUT, "ran longer than its timeout of 500 ms"),
        (killed_for("another"), SHUTDOWN, "process killed because of another task running in it"),
        (
            killed_for("another", KillReason.ROW_LOST),
            SHUTDOWN,
            "process killed because of another task running in it",
        ),
        (
            killed_for("another", KillReason.REQUEUED),
            SHUTDOWN,
            "process killed because of another task running in it",
        ),
        (STOPPED, SHUTDOWN, "interrupted by worker shutdown"),
    ],
)
def test_kill_by_the_worker_is_not_a_crash(death: Death, cause: Cause, message: str) -> None:
    found, error = interrupted_by(death)

    assert (found, error.error_code, error.message) == (cause, cause.code, message)
    assert not found.is_crash


def test_poison_error_lists_all_crashes() -> None:
    _, last = interrupted_by(SEGFAULT)

    error = poison_error(last, crash_count=2, causes=["CHILD_MEMORY: …", last.message or ""])

    assert error.error_code == OperationalErrorCode.POISON_TASK
    assert error.message == "crashed 2 times, last: CHILD_SIGNAL: process 7 killed by SIGSEGV"
    assert error.data["crash_count"] == 2
    assert error.data["causes"] == ["CHILD_MEMORY: …", "CHILD_SIGNAL: process 7 killed by SIGSEGV"]
    assert error.data["signal"] == "SIGSEGV"
