"""Operator actions and sweeps on the demo system. The decisions are those of the real toolkit."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
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
from horsies_tui.demo.catalog import KINDS_BY_NAME, LOST_WORKER, WORKERS

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem


BATCH_SIZE: Final = 500
MISSED_HEARTBEAT: Final = timedelta(seconds=45)
"""One and a half heartbeat intervals."""

_RETRY_POLICY: Final = {"max_retries": 3, "intervals": [60, 60, 60], "auto_retry_for": ["WORKER_CRASHED"]}
_LIVE_WORKERS: Final = {worker.id for worker in WORKERS} - {LOST_WORKER.id}
_FINAL_STATUSES: Final = {
    Action.FAIL: TaskStatus.FAILED,
    Action.CANCEL: TaskStatus.CANCELLED,
    Action.EXPIRE: TaskStatus.EXPIRED,
}


def build_plan(action: Action, selector: Selector, options: ActionOptions, tasks: Sequence[TaskRecord]) -> Plan:
    now = selector.as_of
    checks = [(task, check_action(action, _action_target(task, now), options)) for task in tasks]
    groups = Counter((task.status, task.error_code, check.effect, _refusal(check)) for task, check in checks)
    allowed = [task for task, check in checks if isinstance(check, Allowed)]
    refused = [Skipped(task.id, check.reason) for task, check in checks if isinstance(check, Rejected)]
    started = sum(task.attempt_count > 0 for task in allowed)
    repeats = action in (Action.RETRY, Action.REQUEUE) and started
    return Plan(
        action=action,
        selector=selector,
        options=options,
        matched=len(checks),
        groups=tuple(
            PlanGroup(count=count, status=status, error_code=code, effect=effect, refusal=refusal)
            for (status, code, effect, refusal), count in groups.most_common()
        ),
        samples=tuple(_sample(task, check) for task, check in checks[:10]),
        warnings=(f"side effects may happen again: {started:,} of these did start",) if repeats else (),
        targets=tuple(Target(id=task.id, status=task.status, claim_token=task.claim_token) for task in allowed),
        refused=tuple(refused[:1000]),
        refused_count=len(refused),
        has_running_tasks=any(
            task.status == TaskStatus.RUNNING and task.worker_id in _LIVE_WORKERS for task in allowed
        ),
    )


async def apply_plan(
    system: DemoSystem,
    plan: Plan,
    *,
    progress: Callable[[ActionProgress], None] | None,
    stop: asyncio.Event | None,
    read_only: bool,
) -> ActionReport:
    """Apply the plan in batches; tasks that changed since the plan was made are skipped."""
    if read_only:
        raise Refused("this connection is read-only")
    changed: list[UUID] = []
    skipped: list[Skipped] = list(plan.refused)
    new: list[UUID] = []
    was_stopped = False
    for start in range(0, len(plan.targets), BATCH_SIZE):
        if was_stopped := stop is not None and stop.is_set():
            break
        for target in plan.targets[start : start + BATCH_SIZE]:
            task = system.tasks[target.id]
            if (task.status, task.claim_token) == (target.status, target.claim_token):
                new += _apply_action(system, plan.action, task)
                changed.append(task.id)
            else:
                skipped.append(Skipped(task.id, SkipReason.TASK_STATE_MOVED))
        if progress is not None:
            progress(
                ActionProgress(
                    done=min(start + BATCH_SIZE, len(plan.targets)),
                    total=len(plan.targets),
                    affected=len(changed),
                    skipped=len(skipped),
                    task_ids=tuple(changed),
                )
            )
        await asyncio.sleep(0)
    audit_id = system.audit_log.append(
        plan.action,
        affected=len(changed),
        skipped=len(skipped),
        reason=plan.options.reason,
        filter_document=plan.selector.to_audit(),
        task_ids=changed,
    )
    return ActionReport(
        action=plan.action,
        matched=plan.matched,
        affected=len(changed),
        skipped=tuple(skipped),
        skipped_count=len(skipped),
        task_ids=tuple(changed),
        audit_id=audit_id,
        new_ids=tuple(new),
        was_stopped=was_stopped,
    )


def undo_retry(system: DemoSystem, report: ActionReport) -> ActionReport:
    pending = [task_id for task_id in report.new_ids if system.tasks[task_id].status == TaskStatus.PENDING]
    for task_id in pending:
        system.move(task_id, TaskStatus.CANCELLED, finished_at=system.now())
    return ActionReport(action="cancel", matched=len(report.new_ids), affected=len(pending), task_ids=tuple(pending))


def _apply_action(system: DemoSystem, action: Action, task: TaskRecord) -> list[UUID]:
    """Apply the action to one task; returns the ids of new tasks."""
    match action:
        case Action.RETRY:
            return [system.send(KINDS_BY_NAME[task.name], retry_of=task.id).id]
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
            status = _FINAL_STATUSES[action]
            code = f"OPERATOR_{status}"
            system.move(task.id, status, finished_at=system.now(), last_heartbeat_at=None, error_code=code)
    return []


def _action_target(task: TaskRecord, now: datetime | None) -> ActionTarget:
    is_due_later = task.enqueued_at - (now or task.enqueued_at) > timedelta(0)
    return ActionTarget(
        status=TaskStatus(task.status),
        is_workflow_task=task.workflow_id is not None,
        is_delayed=is_due_later and task.status == TaskStatus.PENDING,
    )


def _sample(task: TaskRecord, check: ActionCheck) -> PlanSample:
    return PlanSample(
        id=task.id,
        name=task.name,
        queue=task.queue,
        status=task.status,
        error_code=task.error_code,
        effect=check.effect,
        refusal=_refusal(check),
    )


def _refusal(check: ActionCheck) -> str | None:
    return check.reason if isinstance(check, Rejected) else None


# Sweep


def stale_candidates(system: DemoSystem, options: SweepOptions) -> SweepReport:
    """The dry run of a sweep."""
    stale = [task for task in _decide_tasks(system, options) if not task.is_fresh]
    return _sweep_report(options, tuple(task.to_swept_task(applied=False) for task in stale), dry_run=True)


def nearly_stale_tasks(system: DemoSystem, options: SweepOptions, within: timedelta) -> tuple[SweptTask, ...]:
    """Tasks that become stale within this time without a heartbeat, of all workers."""
    tasks = _decide_tasks(system, replace(options, worker_id=None))
    near = [task for task in tasks if task.is_fresh and task.silence >= task.threshold - within]
    return tuple(task.to_swept_task(applied=False) for task in near)


def silent_tasks(system: DemoSystem, options: SweepOptions) -> SilentTasks | None:
    """Summary of the tasks that missed a heartbeat but are not stale yet."""
    tasks = _decide_tasks(system, options)
    return summarize_silent(task for task in tasks if task.is_fresh and task.silence >= MISSED_HEARTBEAT)


def _decide_tasks(system: DemoSystem, options: SweepOptions) -> list[StaleTask]:
    """The recovery decision of each claimed and running task that the options select."""
    policy, in_flight = _effective_policy(options), system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    return [
        StaleTask.from_row(_stale_row(system, task), policy)
        for task in in_flight
        if options.worker_id in (None, task.worker_id)
    ]


def sweep(system: DemoSystem, options: SweepOptions, *, reason: str | None, read_only: bool) -> SweepReport:
    if read_only:
        raise Refused("this connection is read-only")
    candidates = stale_candidates(system, options)
    swept = tuple(_apply_decision(system, task) if task.changes_state else task for task in candidates.tasks)
    applied = [task.task_id for task in swept if task.applied]
    selector = {} if options.worker_id is None else {"worker_id": str(options.worker_id)}
    if applied:
        system.audit_log.append(
            "sweep", affected=len(applied), reason=reason, filter_document=selector, task_ids=applied
        )
    return _sweep_report(options, swept, dry_run=False)


def _sweep_report(options: SweepOptions, tasks: tuple[SweptTask, ...], *, dry_run: bool) -> SweepReport:
    due = [task for task in tasks if task.changes_state]
    status = SweepStatus.WOULD_ACT if dry_run else SweepStatus.DONE
    return SweepReport(
        status=status if due else SweepStatus.NOTHING,
        dry_run=dry_run,
        thresholds=_effective_policy(options).thresholds,
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
    owner = next((worker for worker in WORKERS if worker.id == task.worker_id), None)
    options = {"retry_policy": _RETRY_POLICY} if task.max_retries > 1 else {}
    owner_seen_at = None if owner is None else system.lost_worker_seen_at if owner.is_lost else system.now()
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
        owner_seen_at=owner_seen_at,
        owner_config=None,
    )


def _apply_decision(system: DemoSystem, task: SweptTask) -> SweptTask:
    no_owner = {"claimed_at": None, "started_at": None, "last_heartbeat_at": None, "worker_id": None}
    match task.decision:
        case DecisionKind.REQUEUE:
            system.move(task.task_id, TaskStatus.PENDING, **no_owner)
        case DecisionKind.RETRY:
            retries = system.tasks[task.task_id].retry_count + 1
            system.move(task.task_id, TaskStatus.PENDING, enqueued_at=task.run_at, retry_count=retries, **no_owner)
        case DecisionKind.FAIL:
            system.move(
                task.task_id, TaskStatus.FAILED, finished_at=system.now(), last_heartbeat_at=None, error_code=task.code
            )
        case _:
            system.move(task.task_id, TaskStatus.EXPIRED, finished_at=system.now(), last_heartbeat_at=None)
    return replace(task, applied=True)
