"""The sweep of the invented system: the verdicts are those of the real one, for the same function decides."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.errors import Refused
from horsies.model.recovery.evidence import Ears
from horsies.model.recovery.judging import Ruling, Source
from horsies.model.recovery.policy import RecoveryPolicy
from horsies.model.recovery.verdicts import Decision
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus
from horsies.recovery.cases import Case
from horsies.recovery.report import SweepReport, SweepStatus
from horsies.store.recovery import StaleRow
from horsies_ops.reads.verdicts import silent_of
from horsies_tui.demo.catalogue import WORKERS

if TYPE_CHECKING:
    from horsies.model.recovery.options import SweepOptions
    from horsies.recovery.report import SweptTask
    from horsies_ops.reads.tasks import TaskFacts
    from horsies_ops.reads.verdicts import Silent
    from horsies_tui.demo.system import System

MISSED = timedelta(seconds=45)
"""A beat and a half."""

_RETRIES = {"max_retries": 3, "intervals": [60, 60, 60], "auto_retry_for": ["WORKER_CRASHED"]}


def candidates(system: System, options: SweepOptions) -> SweepReport:
    """What a sweep would do."""
    ruling = _ruling(options)
    live = system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    cases = [Case.of(_row(system, task), ruling) for task in live if options.worker_id in (None, task.worker_id)]
    return _report(ruling, tuple(case.swept(applied=False) for case in cases if not case.is_fresh), dry_run=True)


def near_limit(system: System, options: SweepOptions, within: timedelta) -> tuple[SweptTask, ...]:
    """What is not stale yet, and will be after so much more of silence."""
    cases = [
        Case.of(_row(system, task), _ruling(options))
        for task in system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    ]
    return tuple(
        case.swept(applied=False) for case in cases if case.is_fresh and case.silence >= case.threshold - within
    )


def not_yet_stale(system: System, options: SweepOptions) -> Silent | None:
    """What has missed a beat, and is not stale yet."""
    ruling, live = _ruling(options), system.in_state(TaskStatus.CLAIMED, TaskStatus.RUNNING)
    cases = [Case.of(_row(system, task), ruling) for task in live if options.worker_id in (None, task.worker_id)]
    return silent_of(case for case in cases if case.is_fresh and case.silence >= MISSED)


def sweep(system: System, options: SweepOptions, *, reason: str | None, read_only: bool) -> SweepReport:
    if read_only:
        raise Refused("this connection is read-only")
    found = candidates(system, options)
    swept = tuple(_settle(system, task) if task.is_due else task for task in found.tasks)
    moved = [task.task_id for task in swept if task.applied]
    about = {} if options.worker_id is None else {"worker_id": str(options.worker_id)}
    if moved:
        system.record.write("sweep", affected=len(moved), reason=reason, about=about, task_ids=moved)
    return _report(_ruling(options), swept, dry_run=False)


def _report(ruling: Ruling, tasks: tuple[SweptTask, ...], *, dry_run: bool) -> SweepReport:
    due = [task for task in tasks if task.is_due]
    acted = SweepStatus.WOULD_ACT if dry_run else SweepStatus.DONE
    return SweepReport(
        status=acted if due else SweepStatus.NOTHING,
        dry_run=dry_run,
        thresholds=ruling.thresholds,
        recovered_count=sum(task.applied for task in tasks),
        worker_ids=tuple({task.owner_id for task in due if task.owner_id}),
        tasks=tasks,
    )


def _ruling(options: SweepOptions) -> Ruling:
    policy = RecoveryPolicy.of(RecoveryConfig())
    if (threshold := options.sweep_threshold) is not None:
        policy = replace(policy, claimed_threshold=threshold, running_threshold=threshold)
    source = Source.FLEET if options.sweep_threshold is None else Source.OPTIONS
    return Ruling(policy=policy, ears=Ears(), source=source)


def _row(system: System, task: TaskFacts) -> StaleRow:
    owner = next((each for each in WORKERS if each.id == task.worker_id), None)
    options = {"retry_policy": _RETRIES} if task.max_retries > 1 else {}
    seen = None if owner is None else system.last_seen if owner.is_gone else system.now()
    return StaleRow(
        id=task.id, task_name=task.name, status=task.status, queue_name=task.queue, priority=task.priority,
        claim_token=task.claim_token, retry_count=task.retry_count, max_retries=task.max_retries,
        crash_count=task.crash_count, flags=task.flags_json, task_options=json.dumps(options), sent_at=task.sent_at,
        enqueued_at=task.enqueued_at, claimed_at=task.claimed_at, started_at=task.started_at,
        good_until=task.good_until, owner_id=task.worker_id, worker_hostname=task.worker_hostname,
        worker_pid=task.worker_pid, worker_process_name=None, failed_reason=task.failed_reason,
        workflow_id=task.workflow_id, retry_of=task.retry_of, recovery_hold_until=task.recovery_hold_until,
        no_restart=task.no_restart, last_beat_at=task.last_beat_at or system.now(), now=system.now(),
        owner_state=owner and ("lost" if owner.is_gone else "running"), owner_seen_at=seen, owner_config=None,
    )  # fmt: skip


def _settle(system: System, task: SweptTask) -> SweptTask:
    """Carry a verdict out."""
    gone = {"claimed_at": None, "started_at": None, "last_beat_at": None, "worker_id": None}
    match task.decision:
        case Decision.REQUEUE:
            system.move(task.task_id, TaskStatus.PENDING, **gone)
        case Decision.RETRY:
            retries = system.tasks[task.task_id].retry_count + 1
            system.move(task.task_id, TaskStatus.PENDING, enqueued_at=task.run_at, retry_count=retries, **gone)
        case Decision.FAIL:
            system.move(
                task.task_id, TaskStatus.FAILED, finished_at=system.now(), last_beat_at=None, error_code=task.code
            )
        case _:
            system.move(task.task_id, TaskStatus.EXPIRED, finished_at=system.now(), last_beat_at=None)
    return replace(task, applied=True)
