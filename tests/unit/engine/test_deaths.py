"""What the kernel says, and what it means."""

from __future__ import annotations

import signal

import pytest

from horsies.engine.pool.child import ExitReason, WaitStatus
from horsies.model.crash import ExitCause

SENTENCE = ExitReason(cause=ExitCause.KILLED, why="TASK_TIMEOUT")


def _status(*, number: int | None = None, exit_status: int | None = None, said: int | None = None) -> WaitStatus:
    return WaitStatus(signal=number, exit_status=exit_status, max_rss_bytes=0, announced_status=said)


def test_a_sentence_that_was_carried_out_is_the_cause() -> None:
    assert _status(number=signal.SIGKILL).cause_of_exit(SENTENCE, quit_sent=False) == SENTENCE


def test_a_child_that_ended_by_itself_before_the_signal_came_died_of_its_own_cause() -> None:
    verdict = _status(exit_status=3).cause_of_exit(SENTENCE, quit_sent=False)
    assert (verdict.cause, verdict.why) == (ExitCause.CHILD_EXIT, "exited with status 3")


def test_a_signal_of_unknown_origin_is_named() -> None:
    verdict = _status(number=signal.SIGSEGV).cause_of_exit(None, quit_sent=False)
    assert (verdict.cause, verdict.why) == (ExitCause.CHILD_SIGNAL, "killed by SIGSEGV")


@pytest.mark.parametrize(
    ("exit_status", "said", "was_asked", "cause"),
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
def test_an_exit_status_has_its_cause(exit_status: int, said: int | None, was_asked: bool, cause: ExitCause) -> None:
    assert _status(exit_status=exit_status, said=said).cause_of_exit(None, quit_sent=was_asked).cause is cause


def test_only_what_nobody_asked_for_is_a_crash() -> None:
    assert [cause for cause in ExitCause if not cause.is_crash] == [ExitCause.KILLED, ExitCause.RETIRED]
