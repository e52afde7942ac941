"""A child as the worker sees it: liveness and exit classification."""

from __future__ import annotations

import signal

import pytest

from horsies.engine.pool.child import ExitReason, Liveness, WaitStatus
from horsies.model.retry import ExitCause

TIMED_OUT = ExitReason(cause=ExitCause.KILLED, why="TASK_TIMEOUT")


def liveness_after(*ticks: tuple[bool, float], elapsed_s: float = 1.0) -> Liveness:
    """The liveness after ticks, each with whether the child was heard and its CPU time."""
    liveness = Liveness()
    for was_heard, cpu_s in ticks:
        if was_heard:
            liveness.mark_heard()
        liveness.tick(elapsed_s=elapsed_s, expected_s=1.0, cpu_s=cpu_s)
    return liveness


def test_child_that_sends_heartbeats_is_neither_silent_nor_idle() -> None:
    liveness = liveness_after((True, 0.5), (True, 0.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (0, 0, False)


def test_silent_child_that_uses_cpu_is_busy() -> None:
    liveness = liveness_after((True, 0.5), (False, 1.5), (False, 2.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (2, 0, True)


def test_silent_child_without_cpu_use_is_idle() -> None:
    liveness = liveness_after((True, 0.5), (False, 0.5), (False, 0.5))
    assert (liveness.silence_s, liveness.idle_s, liveness.is_silent_but_busy) == (2, 2, False)


def test_heartbeat_ends_the_silence() -> None:
    assert liveness_after((False, 0.0), (False, 0.0), (True, 0.0)).idle_s == 0


def test_pause_of_the_worker_does_not_count_as_silence() -> None:
    assert liveness_after((False, 0.0), elapsed_s=600).idle_s == 2


def wait_status(
    *, number: int | None = None, exit_status: int | None = None, announced: int | None = None
) -> WaitStatus:
    return WaitStatus(signal=number, exit_status=exit_status, max_rss_bytes=0, announced_status=announced)


def test_sigkill_after_a_kill_has_the_reason_of_the_kill() -> None:
    assert wait_status(number=signal.SIGKILL).classify(TIMED_OUT, quit_sent=False) == TIMED_OUT


def test_exit_before_the_signal_keeps_its_own_cause() -> None:
    reason = wait_status(exit_status=3).classify(TIMED_OUT, quit_sent=False)
    assert (reason.cause, reason.why) == (ExitCause.CHILD_EXIT, "exited with status 3")


def test_signal_of_unknown_origin_is_named() -> None:
    reason = wait_status(number=signal.SIGSEGV).classify(None, quit_sent=False)
    assert (reason.cause, reason.why) == (ExitCause.CHILD_SIGNAL, "killed by SIGSEGV")


@pytest.mark.parametrize(
    ("exit_status", "announced", "quit_sent", "cause"),
    [
        (0, None, True, ExitCause.RETIRED),
        (0, None, False, ExitCause.CHILD_EXIT),
        (1, None, True, ExitCause.CHILD_EXIT),
        (71, 71, False, ExitCause.CHILD_MEMORY),
        (71, None, False, ExitCause.CHILD_EXIT),
        (72, 72, False, ExitCause.CHILD_PROTOCOL),
        (72, None, False, ExitCause.CHILD_EXIT),
        (72, 71, False, ExitCause.CHILD_EXIT),
    ],
)
def test_exit_status_determines_the_cause(
    exit_status: int, announced: int | None, quit_sent: bool, cause: ExitCause
) -> None:
    assert wait_status(exit_status=exit_status, announced=announced).classify(None, quit_sent=quit_sent).cause is cause


def test_only_killed_and_retired_are_not_crashes() -> None:
    assert [cause for cause in ExitCause if not cause.is_crash] == [ExitCause.KILLED, ExitCause.RETIRED]
