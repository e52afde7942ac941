"""What an operator may do to a task, and what becomes of it: one rule for the preview and for the change itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from horsies.model.task import TaskStatus


class Action(StrEnum):
    """What operators do to tasks. Requeue is for those that live, retry for those that have ended."""

    REQUEUE = "requeue"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    RETRY = "retry"


class SkipReason(StrEnum):
    """Why an action passes a task or a run over."""

    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    TASK_NOT_CANCELLABLE = "TASK_NOT_CANCELLABLE"
    TASK_STATE_NOT_ALLOWED = "TASK_STATE_NOT_ALLOWED"
    TASK_STATE_MOVED = "TASK_STATE_MOVED"
    TASK_IS_WORKFLOW_TASK = "TASK_IS_WORKFLOW_TASK"
    TASK_IS_RUNNING = "TASK_IS_RUNNING"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    WORKFLOW_NOT_ROOT = "WORKFLOW_NOT_ROOT"
    WORKFLOW_NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    WORKFLOW_STATE_NOT_ALLOWED = "WORKFLOW_STATE_NOT_ALLOWED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOptions:
    """How far an action may go. `kill` ends the process of a running task that is cancelled, and so includes it."""

    include_running: bool = False
    kill: bool = False
    reason: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError("limit must be at least 1")

    @property
    def may_touch_running(self) -> bool:
        return self.include_running or self.kill


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTarget:
    """A task that an operator means, as far as it decides what may be done to it."""

    status: TaskStatus
    is_workflow_task: bool = False
    is_delayed: bool = False
    """PENDING, and not yet due."""
    is_overdue: bool = False
    """Past its good_until."""
    no_restart: str | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """It will be moved; `effect` says to where, in words."""

    effect: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """It will be left as it is."""

    reason: SkipReason
    effect: str


ActionCheck: TypeAlias = Allowed | Rejected

_WAITING: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def check_action(action: Action, task: ActionTarget, options: ActionOptions) -> ActionCheck:
    """What `action` would do to a task that stands like this."""
    match action:
        case Action.REQUEUE:
            return _requeue(task, options)
        case Action.FAIL:
            return _fail_or_cancel(task, options, "FAILED with OPERATOR_FAILED")
        case Action.CANCEL:
            return _cancel(task, options)
        case Action.EXPIRE:
            return _expire(task)
        case Action.RETRY:
            return _retry(task)
        case _:
            assert_never(action)


def _requeue(task: ActionTarget, options: ActionOptions) -> ActionCheck:
    match task.status:
        case TaskStatus.PENDING if task.is_delayed:
            return _return_to_pending(task, "due now instead of later")
        case TaskStatus.CLAIMED:
            return _return_to_pending(task, "back to PENDING, nothing spent")
        case TaskStatus.RUNNING if not options.may_touch_running:
            return _reject_running("needs --include-running")
        case TaskStatus.RUNNING if task.is_overdue:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: past its good_until it could not start again")
        case TaskStatus.RUNNING:
            return _return_to_pending(task, "its owner is asked to stop it; back to PENDING, no retry spent")
        case TaskStatus.PENDING:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: is waiting to be claimed already")
        case _:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: has ended; retry sends it again")


def _return_to_pending(task: ActionTarget, effect: str) -> Allowed:
    """Expiry comes before anything that a workflow says, and neither lets a task start again."""
    if task.is_overdue:
        return Allowed("EXPIRED: past its good_until")
    if task.no_restart is not None:
        return Allowed(f"CANCELLED: its workflow was {task.no_restart}")
    return Allowed(effect)


def _fail_or_cancel(task: ActionTarget, options: ActionOptions, effect: str) -> ActionCheck:
    if task.status in _WAITING:
        return Allowed(effect)
    if task.status is not TaskStatus.RUNNING:
        return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: has ended")
    if not options.may_touch_running:
        return _reject_running("needs --include-running")
    return Allowed(f"{effect}; {_process_effect(options)}")


def _process_effect(options: ActionOptions) -> str:
    return "its process is killed" if options.kill else "its code runs on, its outcome is refused"


def _cancel(task: ActionTarget, options: ActionOptions) -> ActionCheck:
    if task.is_workflow_task:
        return Rejected(SkipReason.TASK_IS_WORKFLOW_TASK, "skipped: cancel its workflow")
    if task.status.is_terminal:
        return Rejected(SkipReason.TASK_NOT_CANCELLABLE, "skipped: has ended")
    return _fail_or_cancel(task, options, "CANCELLED")


def _expire(task: ActionTarget) -> ActionCheck:
    if task.status in _WAITING:
        return Allowed("EXPIRED")
    if task.status is TaskStatus.RUNNING:
        return _reject_running("has started, so it cannot expire")
    return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: has ended")


def _retry(task: ActionTarget) -> ActionCheck:
    if task.is_workflow_task:
        return Rejected(SkipReason.TASK_IS_WORKFLOW_TASK, "skipped: retry its workflow")
    if task.status is TaskStatus.COMPLETED:
        return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: has completed")
    if task.status.is_terminal:
        return Allowed("sent again as a new task, without its good_until and key")
    return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: has not ended; requeue is for live tasks")


def _reject_running(because: str) -> Rejected:
    return Rejected(SkipReason.TASK_IS_RUNNING, f"skipped: is running; {because}")
