"""From a verdict to what is written: the row's new state, its result, its attempt and its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.crashes import interruption
from horsies.model.events import EventKind
from horsies.model.expiry import expired_error
from horsies.model.recovery.verdicts import Expire, Fail, Hold, Leave, RecoveryReason, Requeue, Retry
from horsies.model.task import TaskStatus
from horsies.model.task_error import TaskError
from horsies.store.recovery import EventNote, Move

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.recovery.cases import Case


def move_of(case: Case, *, sweeper: UUID | None, earlier: Sequence[str] = ()) -> Move:
    """What to write for a case that `moves`; `earlier` are the crashes before, told of a task that is poison."""
    verdict, told = case.verdict, _crash_message(case)
    events = tuple(_events(case, sweeper, (*earlier, told)))
    match verdict:
        case Requeue(reason=reason, at=at, retry_count=spent) | Retry(reason=reason, at=at, retry_count=spent):
            return Move(
                status=TaskStatus.PENDING,
                due_at=at,
                retry_count=spent,
                failed_reason=interruption(reason),
                crash_message=told,
                overlap_possible=_may_overlap(case),
                events=events,
            )
        case Fail(code=code):
            return Move(
                status=TaskStatus.CANCELLED if code is OutcomeCode.TASK_CANCELLED else TaskStatus.FAILED,
                error_code=code,
                document=error_document(_error(case, verdict, (*earlier, told))),
                failed_reason=told,
                crash_message=told,
                overlap_possible=_may_overlap(case),
                events=events,
            )
        case Expire():
            return Move(
                status=TaskStatus.EXPIRED,
                error_code=OutcomeCode.TASK_EXPIRED,
                document=expiry_document(case.row.id, case.row.good_until or case.row.now, case.row.owner_id),
                events=events,
            )
        case Hold(until=until):
            return Move(hold_until=until)
        case Leave():
            raise ValueError("there is nothing to write for a task that is left alone")
        case _:
            assert_never(verdict)


def expiry_document(task_id: UUID, good_until: datetime, worker_id: UUID | None = None) -> str:
    """The result of a task that was not started in time."""
    holder = None if worker_id is None else str(worker_id)
    return error_document(expired_error(task_id=str(task_id), good_until=good_until, worker_id=holder))


def error_document(error: TaskError) -> str:
    return canonical({"err": stored_error(error)})


def _error(case: Case, verdict: Fail, crashes: Sequence[str]) -> TaskError:
    data: dict[str, object] = {
        "cause": verdict.reason.value,
        "worker_id": None if case.row.owner_id is None else str(case.row.owner_id),
        "worker_hostname": case.row.worker_hostname,
        "worker_pid": case.row.worker_pid,
        "silence_s": case.silence.total_seconds(),
    }
    if verdict.code is OutcomeCode.TASK_CANCELLED:
        message = f"not started again: its workflow was {case.row.no_restart}"
        return TaskError(error_code=verdict.code, message=message, data=data)
    if verdict.code is OperationalErrorCode.POISON_TASK:
        number = case.row.crash_count + 1
        data |= {"crash_count": number, "causes": list(crashes)}
        return TaskError(error_code=verdict.code, message=f"crashed {number} times, last by {crashes[-1]}", data=data)
    return TaskError(error_code=verdict.code, message=crashes[-1], data=data)


def _crash_message(case: Case) -> str:
    reason, owner = case.reason, case.row.owner_id
    if reason is RecoveryReason.OWNER_STOPPED:
        return f"{reason}: worker {owner} stopped with the task in hand"
    return f"{reason}: no sign of life for {case.silence.total_seconds():.0f} s from worker {owner}"


def _may_overlap(case: Case) -> bool:
    """A worker that stopped in good order has ended its processes; of all others nobody can say."""
    return case.task.status is TaskStatus.RUNNING and case.reason is not RecoveryReason.OWNER_STOPPED


def _events(case: Case, sweeper: UUID | None, crashes: Sequence[str]) -> Iterator[EventNote]:
    row, told = case.row, case.swept(applied=True)
    by = {"owner": None if row.owner_id is None else str(row.owner_id), "silence_s": case.silence.total_seconds()}
    yield EventNote(
        kind=EventKind.TASK_RECOVERED,
        evidence={
            "decision": told.decision,
            "reason": told.reason,
            "code": told.code,
            "last_beat_at": row.last_beat_at.isoformat(),
            "threshold_s": case.threshold.total_seconds(),
            "sweeper": None if sweeper is None else str(sweeper),
            "hook": case.hook,
            **by,
        },
    )
    if isinstance(case.verdict, Retry) and _may_overlap(case):
        yield EventNote(kind=EventKind.OVERLAP_POSSIBLE, evidence=by)
    if told.code == OperationalErrorCode.POISON_TASK:
        evidence = {"crash_count": row.crash_count + 1, "causes": list(crashes)}
        yield EventNote(kind=EventKind.TASK_POISONED, evidence=evidence)
