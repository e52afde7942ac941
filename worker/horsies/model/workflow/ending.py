"""How a node ends, given what became of the task or the run behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from horsies.model.codes import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.task import TaskStatus
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from typing import Final


class Document(StrEnum):
    """What is stored as a task's result."""

    OK = "ok"
    ERR = "err"
    NONE = "none"
    ODD = "odd"
    """Something that is no result."""


class NoRestart(StrEnum):
    """Why a task that was running may end but not start again."""

    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """A backing task that is terminal; `mark` says what its run was when it was last told."""

    status: TaskStatus
    document: Document
    mark: NoRestart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedChild:
    """The run of a sub-workflow that is terminal."""

    status: WorkflowStatus


@dataclass(frozen=True, slots=True)
class Deleted:
    """There was something behind the node, and somebody took it away by hand."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There is nothing behind the node, and never will be: it could not be started."""


Behind: TypeAlias = EndedTask | EndedChild | Deleted | Refused
"""What stands behind a node, once that will not move any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The node is terminal. Without a `code` it takes over what is stored; with one, an error is made of it."""

    status: WorkflowTaskStatus
    code: BuiltInTaskCode | None = None


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The task was taken back because of a pause: the node waits for another one."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The task was taken back because of a cancel: the node never ran to its end."""


NodeEnd: TypeAlias = Ended | Unstarted | Stopped

_CODES: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalErrorCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}
"""What is said of a task that ended without saying anything itself."""


def end_of(behind: Behind) -> NodeEnd:
    """What the node becomes."""
    match behind:
        case EndedTask():
            return _end_of_task(behind)
        case EndedChild():
            return _end_of_child(behind)
        case Deleted():
            return Ended(status=WorkflowTaskStatus.FAILED, code=RetrievalCode.RESULT_NOT_AVAILABLE)
        case Refused():
            return Ended(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED)


def _end_of_task(task: EndedTask) -> NodeEnd:
    if task.status is TaskStatus.CANCELLED and task.mark is not None:
        return Unstarted() if task.mark is NoRestart.PAUSED else Stopped()
    if task.document is Document.ODD:
        return Ended(status=WorkflowTaskStatus.FAILED, code=OperationalErrorCode.WORKER_CRASHED)
    if task.status is TaskStatus.COMPLETED and task.document is Document.OK:
        return Ended(status=WorkflowTaskStatus.COMPLETED)
    if task.document is Document.ERR:
        return Ended(status=WorkflowTaskStatus.FAILED)
    return Ended(status=WorkflowTaskStatus.FAILED, code=_CODES[task.status])


def _end_of_child(child: EndedChild) -> NodeEnd:
    if child.status is WorkflowStatus.COMPLETED:
        return Ended(status=WorkflowTaskStatus.COMPLETED)
    return Ended(status=WorkflowTaskStatus.FAILED, code=OutcomeCode.SUBWORKFLOW_FAILED)
