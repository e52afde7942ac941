"""Turns rows of stale tasks into recovery decisions, and decisions into report entries and stored updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never
from uuid import UUID

from horsies.codec.results import error_document
from horsies.model.events import EventKind, EventRecord
from horsies.model.recovery.decision import (
    MISSING_STATE,
    Decision,
    DecisionKind,
    Evidence,
    Expire,
    Hold,
    Leave,
    RecoveryContext,
    RecoveryReason,
    Requeue,
    TaskOwner,
    decide,
    forecast,
    recovery_reason,
)
from horsies.model.recovery.fleet import EffectivePolicy, WorkerThresholds
from horsies.model.retry import Cancel, Fail, Retry, poison_error
from horsies.model.task import TaskStatus, expired_error
from horsies.model.task_result import OperationalErrorCode, OutcomeCode, TaskError
from horsies.recovery.hooks import HookAnswer
from horsies.recovery.report import GOOD_UNTIL, SweptTask
from horsies.store.recovery import RecoveryUpdate, StaleRow

_KINDS: Final[Mapping[type[Decision], DecisionKind]] = {
    Requeue: DecisionKind.REQUEUE,
    Retry: DecisionKind.RETRY,
    Fail: DecisionKind.FAIL,
    Cancel: DecisionKind.FAIL,  # shown as a failure with the code TASK_CANCELLED
    Expire: DecisionKind.EXPIRE,
    Hold: DecisionKind.HOLD,
    Leave: DecisionKind.LEAVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleTask:
    """A task that may be stale, with its evidence and the decision about it."""

    row: StaleRow
    evidence: Evidence
    effective_policy: EffectivePolicy
    decision: Decision
    hook: str | None = None

    @classmethod
    def from_row(cls, row: StaleRow, policy: EffectivePolicy) -> StaleTask:
        owner = None  # if the worker's row was deleted
        if row.owner_state is not None and row.owner_seen_at is not None:
            published = WorkerThresholds.from_stored(row.owner_config or {})
            owner = TaskOwner(state=row.owner_state, last_heartbeat_at=row.owner_seen_at, thresholds=published)
        evidence = Evidence(last_heartbeat_at=row.last_heartbeat_at, owner=owner, listening=policy.listening)
        decision = decide(row, evidence, policy.policy, row.now)
        return cls(row=row, evidence=evidence, effective_policy=policy, decision=decision)

    def with_hook_answer(self, answered: HookAnswer) -> StaleTask:
        """Decide again with the answer of a hook."""
        evidence = replace(self.evidence, hook_answer=answered.answer)
        decision = decide(self.row, evidence, self.effective_policy.policy, self.row.now)
        return replace(self, evidence=evidence, decision=decision, hook=answered.hook)

    def forecast(self) -> SweptTask:
        """Return what recovery does with the task, and when, if it sends no further heartbeat."""
        row, evidence = self.row, self.evidence
        at, decision = forecast(row, evidence, self.effective_policy.policy, row.now)
        swept = replace(self, row=replace(row, now=at), decision=decision).to_swept_task(applied=False)
        return replace(
            swept, heartbeat_age=self.silence, owner_state=self._owner_state, due_in=max(at - row.now, timedelta(0))
        )

    @property
    def is_fresh(self) -> bool:
        return isinstance(self.decision, Leave) and self.decision.why == "fresh"

    @property
    def kind(self) -> DecisionKind:
        return _KINDS[type(self.decision)]

    @property
    def changes_state(self) -> bool:
        """Whether the decision changes the task's status."""
        return not isinstance(self.decision, (Hold, Leave))

    @property
    def needs_write(self) -> bool:
        return self.changes_state or (isinstance(self.decision, Hold) and self.decision.is_new)

    @property
    def is_poison(self) -> bool:
        return isinstance(self.decision, Fail) and self.decision.code == OperationalErrorCode.POISON_TASK

    @property
    def code(self) -> str | None:
        """The error code of a task that fails or is cancelled."""
        if isinstance(self.decision, Cancel):
            return OutcomeCode.TASK_CANCELLED
        return self.decision.code if isinstance(self.decision, Fail) else None

    @property
    def reason(self) -> RecoveryReason | None:
        """Why the task was interrupted; None if the decision is not based on an interruption."""
        if isinstance(self.decision, (Expire, Hold, Leave)):
            return None
        return recovery_reason(self.evidence, self.effective_policy.policy, self.row.now)

    @property
    def silence(self) -> timedelta:
        return self.row.now - self.row.last_heartbeat_at

    @property
    def threshold(self) -> timedelta:
        return self.effective_policy.policy.threshold(self.row, self.evidence.owner)

    def context(self, *, recovering_worker_id: UUID | None, dry_run: bool) -> RecoveryContext:
        """Build the argument of recovery hooks."""
        return RecoveryContext(
            task=self.row.task_info(),
            recovering_worker_id=None if recovering_worker_id is None else str(recovering_worker_id),
            previous_worker_id=None if self.row.owner_id is None else str(self.row.owner_id),
            # Hooks are called only for decisions with a reason; the fallback satisfies the type.
            reason=self.reason or RecoveryReason.HEARTBEAT_LOST,
            dry_run=dry_run,
        )

    def to_swept_task(self, *, applied: bool) -> SweptTask:
        row, decision = self.row, self.decision
        swept = SweptTask(
            task_id=row.id,
            task_name=row.task_name,
            queue_name=row.queue_name,
            state=row.status,
            owner_id=row.owner_id,
            owner_state=self._owner_state,
            heartbeat_age=self.silence,
            effective_threshold=self.threshold,
            resilient=self.effective_policy.policy.is_resilient(row),
            decision=self.kind,
            reason=self.reason or GOOD_UNTIL,
            code=self.code,
            max_retries=row.max_retries,
            retries_left=max(0, row.max_retries - row.retry_count),
            hook=self.hook,
            applied=applied,
        )
        match decision:
            case Requeue(at=at) | Retry(at=at):
                return replace(swept, run_at=at)
            case Hold(until=until) | Leave(until=until):
                return replace(swept, reason=decision.why, held_until=until)
            case Fail() | Cancel() | Expire():
                return swept
            case _:
                assert_never(decision)

    @property
    def _owner_state(self) -> str:
        owner = self.evidence.owner
        if owner is None:
            return MISSING_STATE
        policy = self.effective_policy
        # Shown as lost as soon as it counts as lost, even if no sweep has stored that yet.
        return "lost" if policy.policy.is_lost(owner, policy.listening, self.row.now) else owner.state


# Stored updates


def build_update(stale: StaleTask, *, sweeper: UUID | None, earlier_crashes: Sequence[str] = ()) -> RecoveryUpdate:
    """Build the update for a decision that `changes_state`; the error of a poison task lists `earlier_crashes`."""
    # The SQL statement stores the crash message only if the task was RUNNING.
    decision, crash_message = stale.decision, _crash_message(stale)
    events = tuple(_events(stale, sweeper, (*earlier_crashes, crash_message)))
    match decision:
        case Requeue(at=at, retry_count=count) | Retry(at=at, retry_count=count):
            return RecoveryUpdate(
                status=TaskStatus.PENDING,
                due_at=at,
                retry_count=count,
                failed_reason=stale.reason and stale.reason.failed_reason,
                crash_message=crash_message,
                overlap_possible=_may_overlap(stale),
                events=events,
            )
        case Fail() | Cancel():
            error = _error(stale, (*earlier_crashes, crash_message))
            return RecoveryUpdate(
                # A task of a paused or cancelled run: it may not start again, but it did not fail either.
                status=TaskStatus.CANCELLED if isinstance(decision, Cancel) else TaskStatus.FAILED,
                error_code=error.error_code,
                document=error_document(error),
                failed_reason=crash_message,
                crash_message=crash_message,
                overlap_possible=_may_overlap(stale),
                events=events,
            )
        case Expire():
            return RecoveryUpdate(
                status=TaskStatus.EXPIRED,
                error_code=OutcomeCode.TASK_EXPIRED,
                document=expiry_document(stale.row.id, stale.row.good_until or stale.row.now, stale.row.owner_id),
                events=events,
            )
        case Hold() | Leave():
            raise ValueError("build_update called for a decision that changes no state")
        case _:
            assert_never(decision)


def expiry_document(task_id: UUID, good_until: datetime, worker_id: UUID | None = None) -> str:
    """The stored result of an expired task."""
    owner = None if worker_id is None else str(worker_id)
    return error_document(expired_error(task_id=str(task_id), good_until=good_until, worker_id=owner))


def _error(stale: StaleTask, crashes: Sequence[str]) -> TaskError:
    row = stale.row
    data: dict[str, object] = {
        "cause": stale.reason,
        "worker_id": None if row.owner_id is None else str(row.owner_id),
        "worker_hostname": row.worker_hostname,
        "worker_pid": row.worker_pid,
        "silence_s": stale.silence.total_seconds(),
    }
    if isinstance(stale.decision, Cancel):
        message = f"not started again: its workflow was {row.no_restart}"
        return TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=message, data=data)
    crash = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=crashes[-1], data=data)
    # The row does not count this crash yet.
    return poison_error(crash, crash_count=row.crash_count + 1, causes=crashes) if stale.is_poison else crash


def _crash_message(stale: StaleTask) -> str:
    reason, owner = stale.reason, stale.row.owner_id
    if reason is RecoveryReason.OWNER_STOPPED:
        return f"{reason}: worker {owner} stopped before the task finished"
    return f"{reason}: no heartbeat from worker {owner} for {stale.silence.total_seconds():.0f} s"


def _may_overlap(stale: StaleTask) -> bool:
    # A worker that stopped cleanly has ended its child processes; after a crash they may still be running.
    return stale.row.status is TaskStatus.RUNNING and stale.reason is not RecoveryReason.OWNER_STOPPED


def _events(stale: StaleTask, sweeper: UUID | None, crashes: Sequence[str]) -> Iterator[EventRecord]:
    row = stale.row
    owner = {"owner": None if row.owner_id is None else str(row.owner_id), "silence_s": stale.silence.total_seconds()}
    yield EventRecord(
        kind=EventKind.TASK_RECOVERED,
        evidence={
            "decision": stale.kind,
            "reason": stale.reason or GOOD_UNTIL,
            "code": stale.code,
            "last_heartbeat_at": row.last_heartbeat_at.isoformat(),
            "threshold_s": stale.threshold.total_seconds(),
            "sweeper": None if sweeper is None else str(sweeper),
            "hook": stale.hook,
            **owner,
        },
    )
    # Only a retry can overlap: no other decision lets a started task run again.
    if isinstance(stale.decision, Retry) and _may_overlap(stale):
        yield EventRecord(kind=EventKind.OVERLAP_POSSIBLE, evidence=owner)
    if stale.is_poison:
        evidence = {"crash_count": row.crash_count + 1, "causes": list(crashes)}
        yield EventRecord(kind=EventKind.TASK_POISONED, evidence=evidence)
