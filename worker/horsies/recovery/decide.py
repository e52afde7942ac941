"""A stale row as the decision sees it, and its verdict in the words of a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, assert_never, cast
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.model.crash import interruption_reason
from horsies.model.events import EventKind
from horsies.model.recovery.decision import (
    MISSING_STATE,
    Decision,
    Evidence,
    Expire,
    Fail,
    Hold,
    Leave,
    LiveTask,
    RecoveryContext,
    RecoveryReason,
    Requeue,
    Retry,
    TaskOwner,
    asks_hooks,
    decide,
)
from horsies.model.recovery.fleet import EffectivePolicy, WorkerThresholds
from horsies.model.retry import RetryPolicy
from horsies.model.task import TaskStatus, expired_error
from horsies.model.task_result import OperationalErrorCode, OutcomeCode, TaskError
from horsies.recovery.hooks import HookAnswer
from horsies.recovery.report import GOOD_UNTIL, SweptTask
from horsies.store.recovery import RecoveryEvent, RecoveryUpdate, StaleRow
from horsies.store.tasks import stale_task_info


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTask:
    """One row, what is known about it, and what is decided."""

    row: StaleRow
    task: LiveTask
    evidence: Evidence
    effective_policy: EffectivePolicy
    decision: Decision
    hook: str | None = None

    @classmethod
    def from_row(cls, row: StaleRow, ruling: EffectivePolicy) -> StaleTask:
        task = _task(row)
        evidence = Evidence(last_heartbeat_at=row.last_heartbeat_at, owner=_owner(row), listening=ruling.listening)
        verdict = decide(task, evidence, ruling.policy, row.now)
        return cls(row=row, task=task, evidence=evidence, effective_policy=ruling, decision=verdict)

    def with_hook_answer(self, answered: HookAnswer) -> StaleTask:
        """The same case with what a hook says about it."""
        evidence = replace(self.evidence, hook_answer=answered.answer)
        verdict = decide(self.task, evidence, self.effective_policy.policy, self.row.now)
        return replace(self, evidence=evidence, decision=verdict, hook=answered.hook)

    @property
    def is_fresh(self) -> bool:
        return isinstance(self.decision, Leave) and self.decision.why == "fresh"

    @property
    def asks_hooks(self) -> bool:
        return asks_hooks(self.decision)

    @property
    def changes_state(self) -> bool:
        """Whether the verdict is to move the task."""
        return isinstance(self.decision, (Requeue, Retry, Fail, Expire))

    @property
    def needs_write(self) -> bool:
        """Whether there is something to write."""
        match self.decision:
            case Requeue() | Retry() | Fail() | Expire():
                return True
            case Hold(is_new=is_new):
                return is_new
            case Leave():
                return False
            case _:
                assert_never(self.decision)

    @property
    def reason(self) -> RecoveryReason | None:
        """Why the task was interrupted; None where nothing says that it was."""
        return self.decision.reason if isinstance(self.decision, (Requeue, Retry, Fail)) else None

    @property
    def silence(self) -> timedelta:
        return self.row.now - self.row.last_heartbeat_at

    @property
    def threshold(self) -> timedelta:
        return self.effective_policy.policy.threshold(self.task, self.evidence.owner)

    def context(self, *, recovering_worker_id: UUID | None, dry_run: bool) -> RecoveryContext:
        """What hooks are told."""
        return RecoveryContext(
            task=stale_task_info(self.row),
            recovering_worker_id=None if recovering_worker_id is None else str(recovering_worker_id),
            previous_worker_id=None if self.row.owner_id is None else str(self.row.owner_id),
            reason=self.reason or RecoveryReason.HEARTBEAT_LOST,
            dry_run=dry_run,
        )

    def to_swept_task(self, *, applied: bool) -> SweptTask:
        row, verdict = self.row, self.decision
        told = SweptTask(
            task_id=row.id,
            task_name=row.task_name,
            queue_name=row.queue_name,
            state=self.task.status,
            owner_id=row.owner_id,
            owner_state=self._owner_state,
            heartbeat_age=self.silence,
            effective_threshold=self.threshold,
            resilient=self.effective_policy.policy.is_resilient(self.task),
            decision=verdict.kind,
            reason=GOOD_UNTIL,
            retries_left=max(0, row.max_retries - row.retry_count),
            hook=self.hook,
            applied=applied,
        )
        match verdict:
            case Requeue(reason=reason, at=at) | Retry(reason=reason, at=at):
                return replace(told, reason=reason, run_at=at)
            case Fail(reason=reason, code=code):
                return replace(told, reason=reason, code=code)
            case Hold(until=until) | Leave(until=until):
                return replace(told, reason=verdict.why, held_until=until)
            case Expire():
                return told
            case _:
                assert_never(verdict)

    @property
    def _owner_state(self) -> str:
        owner = self.evidence.owner
        if owner is None:
            return MISSING_STATE
        return (
            "lost"
            if self.effective_policy.policy.is_lost(owner, self.effective_policy.listening, self.row.now)
            else owner.state
        )


def _task(row: StaleRow) -> LiveTask:
    return LiveTask(
        task_id=row.id,
        status=TaskStatus(row.status),
        claim_token=row.claim_token,
        enqueued_at=row.enqueued_at,
        retry_count=row.retry_count,
        crash_count=row.crash_count,
        retry_policy=_policy(row.task_options),
        good_until=row.good_until,
        flags=_parse_object(row.flags),
        recovery_hold_until=row.recovery_hold_until,
        no_restart=row.no_restart,
    )


def _owner(row: StaleRow) -> TaskOwner | None:
    if row.owner_state is None or row.owner_seen_at is None:
        return None
    published = WorkerThresholds.from_stored(_parse_object(row.owner_config or "{}"))
    return TaskOwner(state=row.owner_state, last_heartbeat_at=row.owner_seen_at, thresholds=published)


def _policy(task_options: str) -> RetryPolicy | None:
    """The policy that travels with the task; one that no longer makes sense is none."""
    stored = _parse_object(task_options).get("retry_policy")
    try:
        return None if stored is None else RetryPolicy.model_validate(stored)
    except ValueError:
        return None


def _parse_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


# From a verdict to what is written: the row's new state, its result, its attempt and its events.


def build_update(case: StaleTask, *, sweeper: UUID | None, earlier_crashes: Sequence[str] = ()) -> RecoveryUpdate:
    """What to write for a case that `moves`; `earlier` are the crashes before, told of a task that is poison."""
    verdict, told = case.decision, _crash_message(case)
    events = tuple(_events(case, sweeper, (*earlier_crashes, told)))
    match verdict:
        case Requeue(reason=reason, at=at, retry_count=spent) | Retry(reason=reason, at=at, retry_count=spent):
            return RecoveryUpdate(
                status=TaskStatus.PENDING,
                due_at=at,
                retry_count=spent,
                failed_reason=interruption_reason(reason),
                crash_message=told,
                overlap_possible=_may_overlap(case),
                events=events,
            )
        case Fail(code=code):
            return RecoveryUpdate(
                status=TaskStatus.CANCELLED if code is OutcomeCode.TASK_CANCELLED else TaskStatus.FAILED,
                error_code=code,
                document=error_document(_error(case, verdict, (*earlier_crashes, told))),
                failed_reason=told,
                crash_message=told,
                overlap_possible=_may_overlap(case),
                events=events,
            )
        case Expire():
            return RecoveryUpdate(
                status=TaskStatus.EXPIRED,
                error_code=OutcomeCode.TASK_EXPIRED,
                document=expiry_document(case.row.id, case.row.good_until or case.row.now, case.row.owner_id),
                events=events,
            )
        case Hold(until=until):
            return RecoveryUpdate(hold_until=until)
        case Leave():
            raise ValueError("there is nothing to write for a task that is left alone")
        case _:
            assert_never(verdict)


def expiry_document(task_id: UUID, good_until: datetime, worker_id: UUID | None = None) -> str:
    """The result of a task that was not started in time."""
    holder = None if worker_id is None else str(worker_id)
    return error_document(expired_error(task_id=str(task_id), good_until=good_until, worker_id=holder))


def error_document(error: TaskError) -> str:
    return canonical_json({"err": encode_task_error(error)})


def _error(case: StaleTask, verdict: Fail, crashes: Sequence[str]) -> TaskError:
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
        return TaskError(error_code=verdict.code, message=f"crashed {number} times, last: {crashes[-1]}", data=data)
    return TaskError(error_code=verdict.code, message=crashes[-1], data=data)


def _crash_message(case: StaleTask) -> str:
    reason, owner = case.reason, case.row.owner_id
    if reason is RecoveryReason.OWNER_STOPPED:
        return f"{reason}: worker {owner} stopped with the task in hand"
    return f"{reason}: no sign of life for {case.silence.total_seconds():.0f} s from worker {owner}"


def _may_overlap(case: StaleTask) -> bool:
    """A worker that stopped in good order has ended its processes; of all others nobody can say."""
    return case.task.status is TaskStatus.RUNNING and case.reason is not RecoveryReason.OWNER_STOPPED


def _events(case: StaleTask, sweeper: UUID | None, crashes: Sequence[str]) -> Iterator[RecoveryEvent]:
    row, told = case.row, case.to_swept_task(applied=True)
    by = {"owner": None if row.owner_id is None else str(row.owner_id), "silence_s": case.silence.total_seconds()}
    yield RecoveryEvent(
        kind=EventKind.TASK_RECOVERED,
        evidence={
            "decision": told.decision,
            "reason": told.reason,
            "code": told.code,
            "last_beat_at": row.last_heartbeat_at.isoformat(),
            "threshold_s": case.threshold.total_seconds(),
            "sweeper": None if sweeper is None else str(sweeper),
            "hook": case.hook,
            **by,
        },
    )
    if isinstance(case.decision, Retry) and _may_overlap(case):
        yield RecoveryEvent(kind=EventKind.OVERLAP_POSSIBLE, evidence=by)
    if told.code == OperationalErrorCode.POISON_TASK:
        evidence = {"crash_count": row.crash_count + 1, "causes": list(crashes)}
        yield RecoveryEvent(kind=EventKind.TASK_POISONED, evidence=evidence)
