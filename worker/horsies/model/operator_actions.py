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


class Refusal(StrEnum):
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
class Candidate:
    """A task that an operator means, as far as it decides what may be done to it."""

    status: TaskStatus
    is_workflow_task: bool = False
    is_delayed: bool = False
    """PENDING, and not yet due."""
    is_overdue: bool = False
    """Past its good_until."""
    no_restart: str | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """It will be moved; `effect` says to where, in words."""

    effect: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """It will be left as it is."""

    refusal: Refusal
    effect: str


Verdict: TypeAlias = Accept | Refuse

_WAITING: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def judge(action: Action, task: Candidate, options: ActionOptions) -> Verdict:
    """What `action` would do to a task that stands like this."""
    match action:
        case Action.REQUEUE:
            return _requeue(task, options)
        case Action.FAIL:
            return _end(task, options, "FAILED with OPERATOR_FAILED")
        case Action.CANCEL:
            return _cancel(task, options)
        case Action.EXPIRE:
            return _expire(task)
        case Action.RETRY:
            return _retry(task)
        case _:
            assert_never(action)


def _requeue(task: Candidate, options: ActionOptions) -> Verdict:
    match task.status:
        case TaskStatus.PENDING if task.is_delayed:
            return _put_back(task, "due now instead of later")
        case TaskStatus.CLAIMED:
            return _put_back(task, "back to PENDING, nothing spent")
        case TaskStatus.RUNNING if not options.may_touch_running:
            return _is_running("needs --include-running")
        case TaskStatus.RUNNING if task.is_overdue:
            return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: past its good_until it could not start again")
        case TaskStatus.RUNNING:
            return _put_back(task, "its owner is asked to stop it; back to PENDING, no retry spent")
        case TaskStatus.PENDING:
            return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: is waiting to be claimed already")
        case _:
            return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: has ended; retry sends it again")


def _put_back(task: Candidate, effect: str) -> Accept:
    """Expiry comes before anything that a workflow says, and neither lets a task start again."""
    if task.is_overdue:
        return Accept("EXPIRED: past its good_until")
    if task.no_restart is not None:
        return Accept(f"CANCELLED: its workflow was {task.no_restart}")
    return Accept(effect)


def _end(task: Candidate, options: ActionOptions, effect: str) -> Verdict:
    if task.status in _WAITING:
        return Accept(effect)
    if task.status is not TaskStatus.RUNNING:
        return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: has ended")
    if not options.may_touch_running:
        return _is_running("needs --include-running")
    return Accept(f"{effect}; {_fate_of_code(options)}")


def _fate_of_code(options: ActionOptions) -> str:
    return "its process is killed" if options.kill else "its code runs on, its outcome is refused"


def _cancel(task: Candidate, options: ActionOptions) -> Verdict:
    if task.is_workflow_task:
        return Refuse(Refusal.TASK_IS_WORKFLOW_TASK, "skipped: cancel its workflow")
    if task.status.is_terminal:
        return Refuse(Refusal.TASK_NOT_CANCELLABLE, "skipped: has ended")
    return _end(task, options, "CANCELLED")


def _expire(task: Candidate) -> Verdict:
    if task.status in _WAITING:
        return Accept("EXPIRED")
    if task.status is TaskStatus.RUNNING:
        return _is_running("has started, so it cannot expire")
    return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: has ended")


def _retry(task: Candidate) -> Verdict:
    if task.is_workflow_task:
        return Refuse(Refusal.TASK_IS_WORKFLOW_TASK, "skipped: retry its workflow")
    if task.status is TaskStatus.COMPLETED:
        return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: has completed")
    if task.status.is_terminal:
        return Accept("sent again as a new task, without its good_until and key")
    return Refuse(Refusal.TASK_STATE_NOT_ALLOWED, "skipped: has not ended; requeue is for live tasks")


def _is_running(because: str) -> Refuse:
    return Refuse(Refusal.TASK_IS_RUNNING, f"skipped: is running; {because}")
