"""Operator actions on tasks: what is allowed and its effect. The preview and the action itself use the same rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from horsies.model.task import TaskStatus

MAX_NAMED_TASKS: Final = 1_000
"""How many tasks a plan, a report or an audit entry names one by one; all of them are counted."""


class Action(StrEnum):
    """An operator action; requeue applies to unfinished tasks, retry to finished ones."""

    REQUEUE = "requeue"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    RETRY = "retry"


class SkipReason(StrEnum):
    """Why an action skips a task or a run."""

    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    TASK_NOT_CANCELLABLE = "TASK_NOT_CANCELLABLE"
    TASK_STATE_NOT_ALLOWED = "TASK_STATE_NOT_ALLOWED"
    TASK_STATE_MOVED = "TASK_STATE_MOVED"
    TASK_IS_WORKFLOW_TASK = "TASK_IS_WORKFLOW_TASK"
    TASK_IS_RUNNING = "TASK_IS_RUNNING"
    TASK_IS_MALFORMED = "TASK_IS_MALFORMED"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    WORKFLOW_NOT_ROOT = "WORKFLOW_NOT_ROOT"
    WORKFLOW_NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    WORKFLOW_STATE_NOT_ALLOWED = "WORKFLOW_STATE_NOT_ALLOWED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOptions:
    """Options of an action; `kill` kills the process of a cancelled running task and implies `include_running`."""

    include_running: bool = False
    kill: bool = False
    reason: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")

    @property
    def may_touch_running(self) -> bool:
        return self.include_running or self.kill


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTarget:
    """The properties of a selected task that decide what an action may do to it."""

    status: TaskStatus
    is_workflow_task: bool = False
    is_delayed: bool = False
    """PENDING and not due yet."""
    is_overdue: bool = False
    """Past its `good_until`."""
    no_restart: str | None = None
    is_malformed: bool = False
    """Its columns violate a constraint on new and on unclaimed tasks: it can be neither sent again nor made due."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The action applies; `effect` describes the result to the operator."""

    effect: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The task is skipped."""

    reason: SkipReason
    effect: str


ActionCheck: TypeAlias = Allowed | Rejected

_WAITING: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def check_action(action: Action, task: ActionTarget, options: ActionOptions) -> ActionCheck:
    """Return whether `action` may be applied to this task, and its effect."""
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
        case TaskStatus.PENDING if task.is_malformed:
            return _reject_malformed("cancel it")
        case TaskStatus.PENDING if task.is_delayed:
            return _return_to_pending(task, "due now instead of later")
        case TaskStatus.CLAIMED:
            return _return_to_pending(task, "back to PENDING, no retry used")
        case TaskStatus.RUNNING if not options.may_touch_running:
            return _reject_running("needs --include-running")
        # Its running attempt may still succeed; a requeue could only expire the task.
        case TaskStatus.RUNNING if task.is_overdue:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: past its good_until, could not start again")
        case TaskStatus.RUNNING:
            return _return_to_pending(task, "its worker stops it; back to PENDING, no retry used")
        case TaskStatus.PENDING:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: already waiting to be claimed")
        case _:
            return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: finished; use retry to send it again")


def _return_to_pending(task: ActionTarget, effect: str) -> Allowed:
    # Expiry takes precedence over a paused or cancelled workflow; the SQL statement checks in the same order.
    if task.is_overdue:
        return Allowed("EXPIRED: past its good_until")
    if task.no_restart is not None:
        return Allowed(f"CANCELLED: its workflow was {task.no_restart}")
    return Allowed(effect)


def _fail_or_cancel(task: ActionTarget, options: ActionOptions, effect: str) -> ActionCheck:
    if task.status in _WAITING:
        return Allowed(effect)
    if task.status is not TaskStatus.RUNNING:
        return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: already finished")
    if not options.may_touch_running:
        return _reject_running("needs --include-running")
    process_effect = "its process is killed" if options.kill else "its code keeps running, its result is discarded"
    return Allowed(f"{effect}; {process_effect}")


def _cancel(task: ActionTarget, options: ActionOptions) -> ActionCheck:
    # Cancelled alone, the backing task would fail its node and leave the rest of the run to go on.
    if task.is_workflow_task:
        return Rejected(SkipReason.TASK_IS_WORKFLOW_TASK, "skipped: cancel its workflow")
    if task.status.is_terminal:
        return Rejected(SkipReason.TASK_NOT_CANCELLABLE, "skipped: already finished")
    return _fail_or_cancel(task, options, "CANCELLED")


def _expire(task: ActionTarget) -> ActionCheck:
    if task.status in _WAITING:
        return Allowed("EXPIRED")
    if task.status is TaskStatus.RUNNING:
        return _reject_running("a started task cannot expire")
    return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: already finished")


def _retry(task: ActionTarget) -> ActionCheck:
    if task.is_workflow_task:
        return Rejected(SkipReason.TASK_IS_WORKFLOW_TASK, "skipped: retry its workflow")
    if task.status is TaskStatus.COMPLETED:
        return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: completed")
    if task.status.is_terminal and task.is_malformed:
        return _reject_malformed("send a new task")
    if task.status.is_terminal:
        # A new task, because a terminal status never changes; the old row keeps the idempotency key.
        return Allowed("sent again as a new task, without its good_until and idempotency key")
    return Rejected(SkipReason.TASK_STATE_NOT_ALLOWED, "skipped: not finished; use requeue for unfinished tasks")


def _reject_malformed(advice: str) -> Rejected:
    return Rejected(SkipReason.TASK_IS_MALFORMED, f"skipped: malformed, see horsies doctor; {advice}")


def _reject_running(explanation: str) -> Rejected:
    return Rejected(SkipReason.TASK_IS_RUNNING, f"skipped: running; {explanation}")
