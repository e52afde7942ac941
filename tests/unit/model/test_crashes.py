"""A child ends; each task it held has one fate."""

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


def held(*, has_begun: bool = True, **facts: Any) -> AssignedTask:
    return AssignedTask(task_id="mine", has_begun=has_begun, timeout_ms=500, **facts)


def killed_for(task_id: str, reason: KillReason = KillReason.TIMEOUT) -> Kill:
    return Kill(reason=reason, pid=7, task_id=task_id)


def settled(task: AssignedTask, death: Death) -> FailAttempt:
    fate = resolve_task(task, death, jitter=0.5)
    assert isinstance(fate, FailAttempt)
    return fate


@pytest.mark.parametrize("death", [SEGFAULT, STOPPED, killed_for("mine"), killed_for("another")])
def test_a_task_that_never_began_goes_back_whatever_its_child_died_of(death: Death) -> None:
    assert resolve_task(held(has_begun=False), death, jitter=0.0) == ReleaseTask()


@pytest.mark.parametrize(
    ("cause", "told", "data"),
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
def test_a_crash_says_how_the_child_died(cause: ExitCause, told: dict[str, int], data: dict[str, object]) -> None:
    fate = settled(held(), Crash(cause=cause, pid=7, why="fell over", **told))

    assert fate.error.error_code == CRASHED
    assert fate.error.message == f"{cause}: process 7 fell over"
    assert fate.error.data == {"cause": cause.value, "pid": 7, **data}
    assert fate.is_crash


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
def test_an_interrupted_task_runs_again_only_where_its_policy_says_so(
    death: Death, policy: RetryPolicy | None, retry_count: int, code: str, delay_s: float | None
) -> None:
    fate = settled(held(retry_policy=policy, retry_count=retry_count), death)

    assert (fate.error.error_code, fate.retry_delay_s) == (code, delay_s)
    assert fate.is_crash == (code == CRASHED)


def test_a_task_whose_row_is_lost_leaves_nothing_to_write() -> None:
    assert resolve_task(held(), killed_for("mine", KillReason.ROW_LOST), jitter=0.0) == DropTask()


def test_a_crash_that_is_one_too_many_ends_a_task_with_all_that_killed_it() -> None:
    fate = settled(held(retry_policy=listing(CRASHED), crash_count=1, earlier_crashes=["CHILD_MEMORY: …"]), SEGFAULT)

    assert fate.poison_error is not None
    assert fate.poison_error.error_code == POISON
    assert fate.poison_error.message == "crashed 2 times, last: CHILD_SIGNAL: process 7 killed by SIGSEGV"
    assert fate.poison_error.data["crash_count"] == 2
    assert fate.poison_error.data["causes"] == ["CHILD_MEMORY: …", "CHILD_SIGNAL: process 7 killed by SIGSEGV"]


@pytest.mark.parametrize("death", [STOPPED, killed_for("mine"), killed_for("another")])
def test_what_we_kill_never_counts_as_a_crash(death: Death) -> None:
    assert settled(held(crash_count=9), death).poison_error is None


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
def test_the_row_says_by_what_a_task_was_interrupted(
    death: Death, policy: RetryPolicy | None, reason: str | None
) -> None:
    assert settled(held(retry_policy=policy), death).failed_reason == reason


def test_jitter_is_added_to_the_delay() -> None:
    policy = RetryPolicy.fixed([100], auto_retry_for=["A"])

    assert retry_delay_s(policy, 0, "A", jitter=1.0) == 125
    assert retry_delay_s(policy, 0, None, jitter=1.0) is None


def test_a_task_that_was_stopped_to_start_again_spends_nothing() -> None:
    assert resolve_task(held(), killed_for("mine", KillReason.REQUEUED), jitter=0.0) == RequeueTask()


def test_its_neighbour_is_cut_without_a_crash() -> None:
    neighbour = settled(held(retry_policy=listing(SHUTDOWN)), killed_for("another", KillReason.REQUEUED))
    assert (neighbour.error.error_code, neighbour.is_crash) == (SHUTDOWN, False)
