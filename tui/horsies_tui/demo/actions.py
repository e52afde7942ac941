"""Actions on invented tasks: the same verdicts as for real ones, because the rule is the same."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.errors import Refused
from horsies.model.operator_actions import (
    Action,
    ActionCheck,
    ActionOptions,
    ActionTarget,
    Allowed,
    Rejected,
    SkipReason,
    check_action,
)
from horsies.model.recovery.decision import DecisionKind, ListeningWindow, RecoveryPolicy
from horsies.model.recovery.fleet import EffectivePolicy, SweepOptions, ThresholdSource
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweepReport, SweepStatus, SweptTask
from horsies.store.recovery import StaleRow
from horsies_ops.actions.plan import Plan, PlanGroup, PlanSample, Selector, Target
from horsies_ops.actions.report import ActionProgress, ActionReport, Skipped
from horsies_ops.reads.stale import SilentTasks, summarize_silent
from horsies_ops.reads.tasks import TaskRecord
from horsies_tui.demo.workflows import KINDS, WORKERS

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem


BATCH = 500
_KINDS = {kind.name: kind for kind in KINDS}
_ALIVE = {member.id for member in WORKERS if not member.is_lost}
_ENDS = {Action.FAIL: TaskStatus.FAILED, Action.CANCEL: TaskStatus.CANCELLED, Action.EXPIRE: TaskStatus.EXPIRED}


def build_plan(action: Action, selector: Selector, options: ActionOptions, tasks: Sequence[TaskRecord]) -> Plan:
    now = selector.as_of
    judged = [(task, check_action(action, _candidate(task, now), options)) for task in tasks]
    groups = Counter((task.status, task.error_code, verdict.effect, _refusal(verdict)) for task, verdict in judged)
    moved = [task for task, verdict in judged if isinstance(verdict, Allowed)]
    refused = [Skipped(task.id, verdict.reason) for task, verdict in judged if isinstance(verdict, Rejected)]
    return Plan(
        action=action,
        selector=selector,
        options=options,
        matched=len(judged),
        groups=tuple(
            PlanGroup(count=count, status=status, error_code=code, effect=effect, refusal=refusal)
            for (status, code, effect, refusal), count in groups.most_common()
        ),
        samples=tuple(_sample(task, verdict) for task, verdict in judged[:10]),
        warnings=_warnings(action, moved),
        targets=tuple(Target(id=task.id, status=task.status, claim_token=task.claim_token) for task in moved),
        refused=tuple(refused[:1000]),
        refused_count=len(refused),
        has_running_tasks=any(task.status == TaskStatus.RUNNING and task.worker_id in _ALIVE for task in moved),
    )


async def apply_plan(
    system: DemoSystem,
    plan: Plan,
    *,
    progress: Callable[[ActionProgress], None] | None,
    stop: asyncio.Event | None,
    read_only: bool,
) -> ActionReport:
    if read_only:
        raise Refused("this connection is read-only")
    moved: list[UUID] = []
    skipped: list[Skipped] = list(plan.refused)
    new: list[UUID] = []
    was_stopped = False
    for start in range(0, len(plan.targets), BATCH):
        if was_stopped := stop is not None and stop.is_set():
            break
        for target in plan.targets[start : start + BATCH]:
            task = system.tasks[target.id]
            if (task.status, task.claim_token) == (target.status, target.claim_token):
                new += _move(system, plan.action, task)
                moved.append(task.id)
            else:
                skipped.append(Skipped(task.id, SkipReason.TASK_STATE_MOVED))
        if progress is not None:
            done = min(start + BATCH, len(plan.targets))
            affected, ids = len(moved), tuple(moved)
            progress(
                ActionProgress(
                    done=done, total=len(plan.targets), affected=affected, skipped=len(skipped), task_ids=ids
                )
            )
        await asyncio.sleep(0)
    about = plan.selector.to_audit()
    audit_id = system.audit_log.append(
        plan.action,
        affected=len(moved),
        skipped=len(skipped),
        reason=plan.options.reason,
        filter_document=about,
        task_ids=moved,
    )
    return ActionReport(
        action=plan.action,
        matched=plan.matched,
        affected=len(moved),
        skipped=tuple(skipped),
        skipped_count=len(skipped),
        task_ids=tuple(moved),
        audit_id=audit_id,
        new_ids=tuple(new),
        was_stopped=was_stopped,
    )


def undo_retry(system: DemoSystem, report: ActionReport) -> ActionReport:
    waiting = [each for each in report.new_ids if system.tasks[each].status == TaskStatus.PENDING]
    for task_id in waiting:
        system.move(task_id, TaskStatus.CANCELLED, finished_at=system.now())
    return ActionReport(action="cancel", matched=len(report.new_ids), affected=len(waiting), task_ids=tuple(waiting))


def _move(system: DemoSystem, action: Action, task: TaskRecord) -> list[UUID]:
    """Carry it out on one task; the ids of what was sent anew."""
    match action:
        case Action.RETRY:
            return [system.send(_KINDS[task.name], retry_of=task.id).id]
        case Action.REQUEUE:
            system.move(
                task.id,
                TaskStatus.PENDING,
                enqueued_at=system.now(),
                claimed_at=None,
                last_heartbeat_at=None,
                worker_id=None,
            )
        case _:
            code = f"OPERATOR_{_ENDS[action]}"
            system.move(task.id, _ENDS[action], finished_at=system.now(), last_heartbeat_at=None, error_code=code)
    return []


def _candidate(task: TaskRecord, now: datetime | None) -> ActionTarget:
    later = task.enqueued_at - (now or task.enqueued_at) > timedelta(0)
    return ActionTarget(
        status=TaskStatus(task.status),
        is_workflow_task=task.workflow_id is not None,
        is_delayed=later and task.status == TaskStatus.PENDING,
    )


def _sample(task: TaskRecord, verdict: ActionCheck) -> PlanSample:
    return PlanSample(
        id=task.id,
        name=task.name,
        queue=task.queue,
        status=task.status,
        error_code=task.error_code,
        effect=verdict.effect,
        refusal=_refusal(verdict),
    )


def _refusal(verdict: ActionCheck) -> str | None:
    return verdict.reason if isinstance(verdict, Rejected) else None


def _warnings(action: Action, moved: Sequence[TaskRecord]) -> tuple[str, ...]:
    begun = sum(task.attempt_count > 0 for task in moved)
    if action in (Action.RETRY, Action.REQUEUE) and begun:
        return (f"side effects may happen again: {begun:,} of these did start",)
    return ()


# The sweep of the invented system: the verdicts are those of the real one, for the same function decides.

MISSED_BEAT = timedelta(seconds=45)
"""A beat and a half."""

_RETRIES = {"max_retries": 3, "intervals": [60, 60, 60], "auto_retry_for": ["WORKER_CRASHED"]}


def stale_candidates(system: DemoSystem, options: SweepOptions) -> SweepReport:
    """What a sweep would do."""
    ruling = _effective_policy(options)
    live = system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    cases = [
        StaleTask.from_row(_stale_row(system, task), ruling)
        for task in live
        if options.worker_id in (None, task.worker_id)
    ]
    return _report(
        ruling, tuple(case.to_swept_task(applied=False) for case in cases if not case.is_fresh), dry_run=True
    )


def nearly_stale_tasks(system: DemoSystem, options: SweepOptions, within: timedelta) -> tuple[SweptTask, ...]:
    """What is not stale yet, and will be after so much more of silence."""
    cases = [
        StaleTask.from_row(_stale_row(system, task), _effective_policy(options))
        for task in system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    ]
    return tuple(
        case.to_swept_task(applied=False) for case in cases if case.is_fresh and case.silence >= case.threshold - within
    )


def silent_tasks(system: DemoSystem, options: SweepOptions) -> SilentTasks | None:
    """What has missed a beat, and is not stale yet."""
    ruling, live = _effective_policy(options), system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    cases = [
        StaleTask.from_row(_stale_row(system, task), ruling)
        for task in live
        if options.worker_id in (None, task.worker_id)
    ]
    return summarize_silent(case for case in cases if case.is_fresh and case.silence >= MISSED_BEAT)


def sweep(system: DemoSystem, options: SweepOptions, *, reason: str | None, read_only: bool) -> SweepReport:
    if read_only:
        raise Refused("this connection is read-only")
    found = stale_candidates(system, options)
    swept = tuple(_apply_decision(system, task) if task.changes_state else task for task in found.tasks)
    moved = [task.task_id for task in swept if task.applied]
    about = {} if options.worker_id is None else {"worker_id": str(options.worker_id)}
    if moved:
        system.audit_log.append("sweep", affected=len(moved), reason=reason, filter_document=about, task_ids=moved)
    return _report(_effective_policy(options), swept, dry_run=False)


def _report(ruling: EffectivePolicy, tasks: tuple[SweptTask, ...], *, dry_run: bool) -> SweepReport:
    due = [task for task in tasks if task.changes_state]
    acted = SweepStatus.WOULD_ACT if dry_run else SweepStatus.DONE
    return SweepReport(
        status=acted if due else SweepStatus.NOTHING,
        dry_run=dry_run,
        thresholds=ruling.thresholds,
        recovered_count=sum(task.applied for task in tasks),
        worker_ids=tuple({task.owner_id for task in due if task.owner_id}),
        tasks=tasks,
    )


def _effective_policy(options: SweepOptions) -> EffectivePolicy:
    policy = RecoveryPolicy.from_config(RecoveryConfig())
    if (threshold := options.sweep_threshold) is not None:
        policy = replace(policy, claimed_threshold=threshold, running_threshold=threshold)
    source = ThresholdSource.FLEET if options.sweep_threshold is None else ThresholdSource.OPTIONS
    return EffectivePolicy(policy=policy, listening=ListeningWindow(), source=source)


def _stale_row(system: DemoSystem, task: TaskRecord) -> StaleRow:
    owner = next((each for each in WORKERS if each.id == task.worker_id), None)
    options = {"retry_policy": _RETRIES} if task.max_retries > 1 else {}
    seen = None if owner is None else system.lost_worker_seen_at if owner.is_lost else system.now()
    return StaleRow(
        id=task.id,
        task_name=task.name,
        status=task.status,
        queue_name=task.queue,
        priority=task.priority,
        claim_token=task.claim_token,
        retry_count=task.retry_count,
        max_retries=task.max_retries,
        crash_count=task.crash_count,
        flags=task.flags_json,
        task_options=json.dumps(options),
        sent_at=task.sent_at,
        enqueued_at=task.enqueued_at,
        claimed_at=task.claimed_at,
        started_at=task.started_at,
        good_until=task.good_until,
        owner_id=task.worker_id,
        worker_hostname=task.worker_hostname,
        worker_pid=task.worker_pid,
        worker_process_name=None,
        failed_reason=task.failed_reason,
        workflow_id=task.workflow_id,
        retry_of=task.retry_of,
        recovery_hold_until=task.recovery_hold_until,
        no_restart=task.no_restart,
        last_heartbeat_at=task.last_heartbeat_at or system.now(),
        now=system.now(),
        owner_state=owner and ("lost" if owner.is_lost else "running"),
        owner_seen_at=seen,
        owner_config=None,
    )


def _apply_decision(system: DemoSystem, task: SweptTask) -> SweptTask:
    """Carry a verdict out."""
    gone = {"claimed_at": None, "started_at": None, "last_heartbeat_at": None, "worker_id": None}
    match task.decision:
        case DecisionKind.REQUEUE:
            system.move(task.task_id, TaskStatus.PENDING, **gone)
        case DecisionKind.RETRY:
            retries = system.tasks[task.task_id].retry_count + 1
            system.move(task.task_id, TaskStatus.PENDING, enqueued_at=task.run_at, retry_count=retries, **gone)
        case DecisionKind.FAIL:
            system.move(
                task.task_id, TaskStatus.FAILED, finished_at=system.now(), last_heartbeat_at=None, error_code=task.code
            )
        case _:
            system.move(task.task_id, TaskStatus.EXPIRED, finished_at=system.now(), last_heartbeat_at=None)
    return replace(task, applied=True)
