"""Which operator actions each task status allows, and their effects."""

from __future__ import annotations

from typing import Any

import pytest

from horsies.model.operator_actions import (
    Action,
    ActionOptions,
    ActionTarget,
    Allowed,
    Rejected,
    SkipReason,
    check_action,
)
from horsies.model.task import TaskStatus

PLAIN, RUNNING_TOO, KILL = ActionOptions(), ActionOptions(include_running=True), ActionOptions(kill=True)

NOT_ALLOWED, IS_RUNNING = SkipReason.TASK_STATE_NOT_ALLOWED, SkipReason.TASK_IS_RUNNING
NOT_CANCELLABLE = SkipReason.TASK_NOT_CANCELLABLE

EXPECTED_REASONS = {
    #          PENDING CLAIMED RUNNING     COMPLETED FAILED CANCELLED EXPIRED
    "requeue": (NOT_ALLOWED, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "fail": (None, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "cancel": (None, None, IS_RUNNING, *[NOT_CANCELLABLE] * 4),
    "expire": (None, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "retry": (*[NOT_ALLOWED] * 4, None, None, None),
}


def skip_reason(action: str, status: str, options: ActionOptions = PLAIN, **fields: Any) -> SkipReason | None:
    check = check_action(Action(action), ActionTarget(status=TaskStatus(status), **fields), options)
    return check.reason if isinstance(check, Rejected) else None


def effect(action: str, task: ActionTarget, options: ActionOptions = PLAIN) -> str:
    check = check_action(Action(action), task, options)
    assert isinstance(check, Allowed)
    return check.effect


@pytest.mark.parametrize("action", Action)
def test_actions_allowed_by_status(action: str) -> None:
    assert tuple(skip_reason(action, status) for status in TaskStatus) == EXPECTED_REASONS[action]


@pytest.mark.parametrize("action", ["requeue", "fail", "cancel"])
def test_running_task_needs_include_running(action: str) -> None:
    assert skip_reason(action, "RUNNING") == IS_RUNNING
    assert skip_reason(action, "RUNNING", RUNNING_TOO) is None


def test_rejection_of_a_running_task_names_the_option() -> None:
    check = check_action(Action.CANCEL, ActionTarget(status=TaskStatus.RUNNING), PLAIN)
    assert check.effect == "skipped: running; needs --include-running"


def test_kill_includes_running_tasks() -> None:
    assert skip_reason("cancel", "RUNNING", KILL) is None


def test_started_task_cannot_expire() -> None:
    assert skip_reason("expire", "RUNNING", RUNNING_TOO) == IS_RUNNING


def test_requeue_makes_a_delayed_task_due() -> None:
    assert skip_reason("requeue", "PENDING", is_delayed=True) is None


@pytest.mark.parametrize(("action", "status"), [("requeue", "PENDING"), ("retry", "FAILED")])
def test_malformed_task_cannot_be_made_due_again(action: str, status: str) -> None:
    assert skip_reason(action, status, is_malformed=True, is_delayed=True) == SkipReason.TASK_IS_MALFORMED
    assert skip_reason("cancel", "PENDING", is_malformed=True) is None


@pytest.mark.parametrize(("action", "status"), [("cancel", "PENDING"), ("retry", "FAILED")])
def test_cancel_and_retry_skip_workflow_tasks(action: str, status: str) -> None:
    assert skip_reason(action, status, is_workflow_task=True) == SkipReason.TASK_IS_WORKFLOW_TASK


@pytest.mark.parametrize("action", ["requeue", "fail", "expire"])
def test_other_actions_apply_to_workflow_tasks(action: str) -> None:
    assert skip_reason(action, "CLAIMED", is_workflow_task=True) is None


def test_requeue_of_an_overdue_claim_expires_it() -> None:
    overdue = ActionTarget(status=TaskStatus.CLAIMED, is_overdue=True, no_restart="paused")
    assert effect("requeue", overdue).startswith("EXPIRED")


def test_requeue_skips_an_overdue_running_task() -> None:
    assert skip_reason("requeue", "RUNNING", RUNNING_TOO, is_overdue=True) == NOT_ALLOWED


def test_requeue_cancels_a_task_of_a_paused_workflow() -> None:
    paused = ActionTarget(status=TaskStatus.RUNNING, no_restart="paused")
    assert effect("requeue", paused, RUNNING_TOO) == "CANCELLED: its workflow was paused"


@pytest.mark.parametrize(("options", "text"), [(RUNNING_TOO, "keeps running"), (KILL, "is killed")])
def test_effect_describes_what_happens_to_running_code(options: ActionOptions, text: str) -> None:
    assert text in effect("cancel", ActionTarget(status=TaskStatus.RUNNING), options)


def test_limit_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ActionOptions(limit=0)
