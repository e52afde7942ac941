"""From what is found in the database to the result that the caller gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.codec.result import AnyResult, read_result
from horsies.model.codes import BuiltInTaskCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.task import TaskStatus
from horsies.model.task_error import TaskError
from horsies.model.task_result import TaskResult

if TYPE_CHECKING:
    from horsies.codec.value import Value
    from horsies.errors import HorsiesError
    from horsies.store.tasks import OutcomeRow


def result_of(task_id: str, row: OutcomeRow | None, ok: Value | None) -> AnyResult:
    """The result of a task that is terminal, or that there is no such task."""
    if row is None:
        return failed(RetrievalCode.TASK_NOT_FOUND, f"there is no task {task_id}")
    if TaskStatus(row.status) is TaskStatus.CANCELLED:
        return _cancelled(task_id, row.document)
    if row.document is not None:
        return read_result(row.document, ok)
    return failed(RetrievalCode.RESULT_NOT_AVAILABLE, f"task {task_id} is {row.status} and has no stored result")


def _cancelled(task_id: str, document: str | None) -> AnyResult:
    """Cancelled, in the words of whoever did it; a result that a run before left behind is none."""
    stored = None if document is None else read_result(document)
    if stored is not None and stored.is_err() and stored.err_value.error_code is OutcomeCode.TASK_CANCELLED:
        return stored
    return failed(OutcomeCode.TASK_CANCELLED, f"task {task_id} was cancelled")


def not_yet(task_id: str, status: str, *, seen_s_ago: float = 0) -> AnyResult:
    """The time is over; how the task stood when it was last looked at, which may be a while ago."""
    when = f"when last looked at, {seen_s_ago * 1000:.0f} ms ago, it was" if seen_s_ago else "it is"
    text = f"task {task_id} has not ended in time; {when} {status}{_MEANING.get(status, '')}"
    return failed(RetrievalCode.WAIT_TIMEOUT, text)


def no_look(task_id: str) -> AnyResult:
    """The time is over, and the database has not said how the task stands."""
    return failed(RetrievalCode.WAIT_TIMEOUT, f"the database has not said in time whether task {task_id} has ended")


_MEANING: dict[str, str] = {
    TaskStatus.PENDING: ", in no worker's hands",
    TaskStatus.CLAIMED: " by a worker, and not begun",
}


def unreachable(error: HorsiesError) -> AnyResult:
    return failed(OperationalErrorCode.BROKER_ERROR, error.message)


def is_final(result: AnyResult) -> bool:
    """Whether asking again can give no other answer."""
    passing = {RetrievalCode.WAIT_TIMEOUT, RetrievalCode.TASK_NOT_FOUND, OperationalErrorCode.BROKER_ERROR}
    return result.is_ok() or result.err_value.error_code not in passing


def failed(code: BuiltInTaskCode, message: str) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message))
