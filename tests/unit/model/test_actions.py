"""What an operator may do to a task, state by state."""

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

WHAT_IS_REFUSED = {
    #          PENDING CLAIMED RUNNING     COMPLETED FAILED CANCELLED EXPIRED
    "requeue": (NOT_ALLOWED, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "fail": (None, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "cancel": (None, None, IS_RUNNING, *[NOT_CANCELLABLE] * 4),
    "expire": (None, None, IS_RUNNING, *[NOT_ALLOWED] * 4),
    "retry": (*[NOT_ALLOWED] * 4, None, None, None),
}


def refusal(action: str, status: str, options: ActionOptions = PLAIN, **facts: Any) -> SkipReason | None:
    verdict = check_action(Action(action), ActionTarget(status=TaskStatus(status), **facts), options)
    return verdict.reason if isinstance(verdict, Rejected) else None


def effect(action: str, task: ActionTarget, options: ActionOptions = PLAIN) -> str:
    verdict = check_action(Action(action), task, options)
    assert isinstance(verdict, Allowed)
    return verdict.effect


@pytest.mark.parametrize("action", Action)
def test_what_each_state_allows(action: str) -> None:
    assert tuple(refusal(action, status) for status in TaskStatus) == WHAT_IS_REFUSED[action]


@pytest.mark.parametrize("action", ["requeue", "fail", "cancel"])
def test_a_running_task_is_touched_only_when_asked_for(action: str) -> None:
    assert refusal(action, "RUNNING") == IS_RUNNING
    assert refusal(action, "RUNNING", RUNNING_TOO) is None


def test_the_refusal_of_a_running_task_names_the_option() -> None:
    verdict = check_action(Action.CANCEL, ActionTarget(status=TaskStatus.RUNNING), PLAIN)
    assert verdict.effect == "skipped: running; needs --include-running"


def test_kill_includes_running_tasks() -> None:
    assert refusal("cancel", "RUNNING", KILL) is None


def test_what_has_started_cannot_expire_whatever_is_asked() -> None:
    assert refusal("expire", "RUNNING", RUNNING_TOO) == IS_RUNNING


def test_a_delayed_task_is_made_due_now() -> None:
    assert refusal("requeue", "PENDING", is_delayed=True) is None


@pytest.mark.parametrize(("action", "status"), [("cancel", "PENDING"), ("retry", "FAILED")])
def test_a_node_of_a_workflow_is_left_to_its_workflow(action: str, status: str) -> None:
    assert refusal(action, status, is_workflow_task=True) == SkipReason.TASK_IS_WORKFLOW_TASK


@pytest.mark.parametrize("action", ["requeue", "fail", "expire"])
def test_other_actions_take_nodes_of_workflows_too(action: str) -> None:
    assert refusal(action, "CLAIMED", is_workflow_task=True) is None


def test_a_claim_past_its_time_expires_instead_of_going_back() -> None:
    overdue = ActionTarget(status=TaskStatus.CLAIMED, is_overdue=True, no_restart="paused")
    assert effect("requeue", overdue).startswith("EXPIRED")


def test_a_run_past_its_time_is_not_stopped_for_nothing() -> None:
    assert refusal("requeue", "RUNNING", RUNNING_TOO, is_overdue=True) == NOT_ALLOWED


def test_a_run_whose_workflow_was_paused_is_not_started_again() -> None:
    paused = ActionTarget(status=TaskStatus.RUNNING, no_restart="paused")
    assert effect("requeue", paused, RUNNING_TOO) == "CANCELLED: its workflow was paused"


@pytest.mark.parametrize(("options", "says"), [(RUNNING_TOO, "keeps running"), (KILL, "is killed")])
def test_the_effect_says_what_becomes_of_running_code(options: ActionOptions, says: str) -> None:
    assert says in effect("cancel", ActionTarget(status=TaskStatus.RUNNING), options)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ActionOptions(limit=0)
