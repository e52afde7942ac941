"""What happens to the tasks of a child that exited."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from horsies.model.crash import (
    AssignedTask,
    Crash,
    Death,
    DropTask,
    ExitCause,
    FailAttempt,
    Kill,
    KillReason,
    ReleaseTask,
    RequeueTask,
    resolve_task,
    retry_delay_s,
)
from horsies.model.retry import RetryPolicy
from horsies.model.task_result import OperationalErrorCode, OutcomeCode

CRASHED, SHUTDOWN, POISON = (
    OperationalErrorCode.WORKER_CRASHED,
    OperationalErrorCode.SHUTDOWN,
    OperationalErrorCode.POISON_TASK,
)
TIMEOUT = OutcomeCode.TASK_TIMEOUT
SEGFAULT = Crash(cause=ExitCause.CHILD_SIGNAL, pid=7, signal=signal.SIGSEGV, why="killed by SIGSEGV")
STOPPED = Kill(reason=KillReason.SHUTDOWN, pid=7)


def listing(*codes: str) -> RetryPolicy:
    return RetryPolicy.fixed([60, 300], auto_retry_for=codes, jitter=False)


def make_task(*, has_begun: bool = True, **fields: Any) -> AssignedTask:
    return AssignedTask(task_id="mine", has_begun=has_begun, timeout_ms=500, **fields)


def killed_for(task_id: str, reason: KillReason = KillReason.TIMEOUT) -> Kill:
    return Kill(reason=reason, pid=7, task_id=task_id)


def failed_attempt(task: AssignedTask, death: Death) -> FailAttempt:
    resolution = resolve_task(task, death, jitter=0.5)
    assert isinstance(resolution, FailAttempt)
    return resolution


@pytest.mark.parametrize("death", [SEGFAULT, STOPPED, killed_for("mine"), killed_for("another")])
def test_task_that_never_began_is_released(death: Death) -> None:
    assert resolve_task(make_task(has_begun=False), death, jitter=0.0) == ReleaseTask()


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
    resolution = failed_attempt(make_task(), Crash(cause=cause, pid=7, why="crashed", **details))

    assert resolution.error.error_code == CRASHED
    assert resolution.error.message == f"{cause}: process 7 crashed"
    assert resolution.error.data == {"cause": cause.value, "pid": 7, **data}
    assert resolution.is_crash


@pytest.mark.parametrize(
    ("death", "policy", "retry_count", "code", "delay_s"),
    [
        (SEGFAULT, None, 0, CRASHED, None),
        (SEGFAULT, listing(TIMEOUT, SHUTDOWN), 0, CRASHED, None),
        (SEGFAULT, listing(CRASHED), 0, CRASHED, 60),
        (SEGFAULT, listing(CRASHED), 1, CRASHED, 300),
        (SEGFAULT, listing(CRASHED), 2, CRASHED, None),
        (killed_for("mine"), None, 0, TIMEOUT, None),
        (killed_for("mine"), listing(CRASHED), 0, TIMEOUT, None),
        (killed_for("mine"), listing(TIMEOUT), 1, TIMEOUT, 300),
        (killed_for("another"), listing(TIMEOUT), 0, SHUTDOWN, None),
        (killed_for("another"), listing(CRASHED), 0, SHUTDOWN, 0),
        (killed_for("another", KillReason.ROW_LOST), listing(SHUTDOWN), 1, SHUTDOWN, 0),
        (STOPPED, None, 0, SHUTDOWN, None),
        (STOPPED, listing(SHUTDOWN), 0, SHUTDOWN, 0),
        (STOPPED, listing(CRASHED), 1, SHUTDOWN, 0),
        (STOPPED, listing(SHUTDOWN, CRASHED), 2, SHUTDOWN, None),
    ],
)
def test_interrupted_task_is_retried_only_if_its_policy_allows(
    death: Death, policy: RetryPolicy | None, retry_count: int, code: str, delay_s: float | None
) -> None:
    resolution = failed_attempt(make_task(retry_policy=policy, retry_count=retry_count), death)

    assert (resolution.error.error_code, resolution.retry_delay_s) == (code, delay_s)
    assert resolution.is_crash == (code == CRASHED)


def test_task_with_a_lost_row_is_dropped() -> None:
    assert resolve_task(make_task(), killed_for("mine", KillReason.ROW_LOST), jitter=0.0) == DropTask()


def test_poison_error_lists_all_crashes() -> None:
    resolution = failed_attempt(
        make_task(retry_policy=listing(CRASHED), crash_count=1, earlier_crashes=["CHILD_MEMORY: …"]), SEGFAULT
    )

    assert resolution.poison_error is not None
    assert resolution.poison_error.error_code == POISON
    assert resolution.poison_error.message == "crashed 2 times, last: CHILD_SIGNAL: process 7 killed by SIGSEGV"
    assert resolution.poison_error.data["crash_count"] == 2
    assert resolution.poison_error.data["causes"] == ["CHILD_MEMORY: …", "CHILD_SIGNAL: process 7 killed by SIGSEGV"]


@pytest.mark.parametrize("death", [STOPPED, killed_for("mine"), killed_for("another")])
def test_kill_by_the_worker_is_not_a_crash(death: Death) -> None:
    assert failed_attempt(make_task(crash_count=9), death).poison_error is None


@pytest.mark.parametrize(
    ("death", "policy", "reason"),
    [
        (SEGFAULT, listing(CRASHED), "recovered after worker interruption: CHILD_DIED"),
        (SEGFAULT, None, "CHILD_SIGNAL: process 7 killed by SIGSEGV"),
        (STOPPED, listing(SHUTDOWN), "recovered after worker interruption: SHUTDOWN"),
        (STOPPED, None, "interrupted by worker shutdown"),
        (killed_for("mine"), listing(TIMEOUT), None),
    ],
)
def test_failed_reason_names_the_interruption(death: Death, policy: RetryPolicy | None, reason: str | None) -> None:
    assert failed_attempt(make_task(retry_policy=policy), death).failed_reason == reason


def test_jitter_is_added_to_the_delay() -> None:
    policy = RetryPolicy.fixed([100], auto_retry_for=["A"])

    assert retry_delay_s(policy, 0, "A", jitter=1.0) == 125
    assert retry_delay_s(policy, 0, None, jitter=1.0) is None


def test_task_killed_for_requeue_uses_no_retry() -> None:
    assert resolve_task(make_task(), killed_for("mine", KillReason.REQUEUED), jitter=0.0) == RequeueTask()


def test_other_task_in_the_killed_process_counts_no_crash() -> None:
    other = failed_attempt(make_task(retry_policy=listing(SHUTDOWN)), killed_for("another", KillReason.REQUEUED))
    assert (other.error.error_code, other.is_crash) == (SHUTDOWN, False)
