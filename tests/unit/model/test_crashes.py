"""A child ends; each task it held has one fate."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.crashes import (
    Cause,
    Crash,
    Death,
    Drop,
    HandBack,
    HeldTask,
    Kill,
    KillReason,
    Settle,
    fate_of,
    retry_delay_s,
)
from horsies.model.retry import RetryPolicy

CRASHED, SHUTDOWN, POISON = (
    OperationalErrorCode.WORKER_CRASHED,
    OperationalErrorCode.SHUTDOWN,
    OperationalErrorCode.POISON_TASK,
)
TIMEOUT = OutcomeCode.TASK_TIMEOUT
SEGFAULT = Crash(cause=Cause.CHILD_SIGNAL, pid=7, signal=signal.SIGSEGV)
STOPPED = Kill(reason=KillReason.SHUTDOWN, pid=7)


def listing(*codes: str) -> RetryPolicy:
    return RetryPolicy.fixed([60, 300], auto_retry_for=codes, jitter=False)


def held(*, has_begun: bool = True, **facts: Any) -> HeldTask:
    return HeldTask(task_id="mine", has_begun=has_begun, timeout_ms=500, **facts)


def killed_for(task_id: str, reason: KillReason = KillReason.TIMEOUT) -> Kill:
    return Kill(reason=reason, pid=7, task_id=task_id)


def settled(task: HeldTask, death: Death, *, max_crashes: int = 10) -> Settle:
    fate = fate_of(task, death, max_crashes=max_crashes, jitter=0.5)
    assert isinstance(fate, Settle)
    return fate


@pytest.mark.parametrize("death", [SEGFAULT, STOPPED, killed_for("mine"), killed_for("another")])
def test_a_task_that_never_began_goes_back_whatever_its_child_died_of(death: Death) -> None:
    assert fate_of(held(has_begun=False), death, max_crashes=1, jitter=0.0) == HandBack()


@pytest.mark.parametrize(
    ("crash", "data", "words"),
    [
        (SEGFAULT, {"cause": "CHILD_SIGNAL", "signal": "SIGSEGV"}, "killed by SIGSEGV"),
        (Crash(cause=Cause.CHILD_SIGNAL, pid=7, signal=40), {"cause": "CHILD_SIGNAL", "signal": "signal 40"}, "40"),
        (Crash(cause=Cause.CHILD_EXIT, pid=7, exit_status=3), {"cause": "CHILD_EXIT", "exit_status": 3}, "status 3"),
        (Crash(cause=Cause.CHILD_EXIT, pid=7, exit_status=0), {"cause": "CHILD_EXIT", "exit_status": 0}, "status 0"),
        (Crash(cause=Cause.CHILD_MEMORY, pid=7), {"cause": "CHILD_MEMORY"}, "out of memory"),
        (Crash(cause=Cause.CHILD_PROTOCOL, pid=7), {"cause": "CHILD_PROTOCOL"}, "broke off"),
        (Crash(cause=Cause.HEARTBEAT_LOST, pid=7), {"cause": "HEARTBEAT_LOST"}, "silent and idle"),
    ],
)
def test_a_crash_says_how_the_child_died(crash: Crash, data: dict[str, object], words: str) -> None:
    fate = settled(held(), crash)

    assert (fate.error.error_code, fate.error.data) == (CRASHED, {"pid": 7, **data})
    assert fate.error.message is not None
    assert fate.error.message.startswith(f"{data['cause']}: process 7 ")
    assert words in fate.error.message
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
    fate = settled(held(policy=policy, retry_count=retry_count), death)

    assert (fate.error.error_code, fate.retry_delay_s) == (code, delay_s)
    assert fate.is_crash == (code == CRASHED)


def test_a_task_whose_row_is_lost_leaves_nothing_to_write() -> None:
    assert fate_of(held(), killed_for("mine", KillReason.ROW_LOST), max_crashes=1, jitter=0.0) == Drop()


@pytest.mark.parametrize(
    ("crash_count", "max_crashes", "code"), [(0, 1, POISON), (1, 3, CRASHED), (2, 3, POISON), (5, 3, POISON)]
)
def test_the_last_crash_allowed_poisons_a_task_whatever_its_policy(
    crash_count: int, max_crashes: int, code: str
) -> None:
    fate = settled(held(policy=listing(CRASHED), crash_count=crash_count), SEGFAULT, max_crashes=max_crashes)

    assert fate.error.error_code == code
    assert (fate.retry_delay_s is None) == (code == POISON)
    assert fate.is_crash


def test_a_poisoned_task_tells_what_killed_it_each_time() -> None:
    fate = settled(held(crash_count=1, earlier_crashes=["CHILD_MEMORY: …"]), SEGFAULT, max_crashes=2)

    assert fate.error.data["crash_count"] == 2
    assert fate.error.data["causes"] == ["CHILD_MEMORY: …", "CHILD_SIGNAL: process 7 killed by SIGSEGV"]


@pytest.mark.parametrize("death", [STOPPED, killed_for("mine"), killed_for("another")])
def test_what_we_kill_never_counts_as_a_crash(death: Death) -> None:
    fate = settled(held(crash_count=9), death, max_crashes=1)

    assert fate.error.error_code != POISON
    assert not fate.is_crash


@pytest.mark.parametrize(
    ("death", "policy", "reason"),
    [
        (SEGFAULT, listing(CRASHED), "recovered after worker interruption: CHILD_DIED"),
        (SEGFAULT, None, "CHILD_SIGNAL: process 7 killed by SIGSEGV"),
        (STOPPED, listing(SHUTDOWN), "recovered after worker interruption: SHUTDOWN"),
        (STOPPED, None, "cut by a stopping worker"),
        (killed_for("mine"), listing(TIMEOUT), None),
    ],
)
def test_the_row_says_by_what_a_task_was_interrupted(
    death: Death, policy: RetryPolicy | None, reason: str | None
) -> None:
    assert settled(held(policy=policy), death).failed_reason == reason


def test_jitter_is_added_to_the_delay() -> None:
    policy = RetryPolicy.fixed([100], auto_retry_for=["A"])

    assert retry_delay_s(policy, 0, "A", jitter=1.0) == 125
    assert retry_delay_s(policy, 0, None, jitter=1.0) is None
