"""Actions on invented tasks: the same verdicts as for real ones, because the rule is the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.errors import Refused
from horsies.model.actions import Accept, Action, Candidate, Refusal, Refuse, judge
from horsies.model.task import TaskStatus
from horsies_ops.actions.plan import Plan, PlanGroup, Sample, Skipped
from horsies_ops.actions.planning import Target
from horsies_ops.actions.report import ActionReport, Progress
from horsies_tui.demo.catalogue import KINDS, WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.model.actions import ActionOptions, Verdict
    from horsies_ops.actions.selector import Selector
    from horsies_ops.reads.tasks import TaskFacts
    from horsies_tui.demo.system import System

BATCH = 500
_KINDS = {kind.name: kind for kind in KINDS}
_ALIVE = {member.id for member in WORKERS if not member.is_gone}
_ENDS = {Action.FAIL: TaskStatus.FAILED, Action.CANCEL: TaskStatus.CANCELLED, Action.EXPIRE: TaskStatus.EXPIRED}


def plan(action: Action, selector: Selector, options: ActionOptions, tasks: Sequence[TaskFacts]) -> Plan:
    now = selector.as_of
    judged = [(task, judge(action, _candidate(task, now), options)) for task in tasks]
    groups = Counter((task.status, task.error_code, verdict.effect, _refusal(verdict)) for task, verdict in judged)
    moved = [task for task, verdict in judged if isinstance(verdict, Accept)]
    refused = [Skipped(task.id, verdict.refusal) for task, verdict in judged if isinstance(verdict, Refuse)]
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
        has_live_runs=any(task.status == TaskStatus.RUNNING and task.worker_id in _ALIVE for task in moved),
    )


async def apply(
    system: System,
    plan: Plan,
    *,
    progress: Callable[[Progress], None] | None,
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
                skipped.append(Skipped(task.id, Refusal.TASK_STATE_MOVED))
        if progress is not None:
            done = min(start + BATCH, len(plan.targets))
            affected, ids = len(moved), tuple(moved)
            progress(
                Progress(done=done, total=len(plan.targets), affected=affected, skipped=len(skipped), task_ids=ids)
            )
        await asyncio.sleep(0)
    about = plan.selector.document()
    audit_id = system.record.write(
        plan.action, affected=len(moved), skipped=len(skipped), reason=plan.options.reason, about=about, task_ids=moved
    )
    return ActionReport(
        action=plan.action, matched=plan.matched, affected=len(moved), skipped=tuple(skipped),
        skipped_count=len(skipped), task_ids=tuple(moved), audit_id=audit_id, new_ids=tuple(new),
        was_stopped=was_stopped,
    )  # fmt: skip


def undo(system: System, report: ActionReport) -> ActionReport:
    waiting = [each for each in report.new_ids if system.tasks[each].status == TaskStatus.PENDING]
    for task_id in waiting:
        system.move(task_id, TaskStatus.CANCELLED, finished_at=system.now())
    return ActionReport(action="cancel", matched=len(report.new_ids), affected=len(waiting), task_ids=tuple(waiting))


def _move(system: System, action: Action, task: TaskFacts) -> list[UUID]:
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
                last_beat_at=None,
                worker_id=None,
            )
        case _:
            code = f"OPERATOR_{_ENDS[action]}"
            system.move(task.id, _ENDS[action], finished_at=system.now(), last_beat_at=None, error_code=code)
    return []


def _candidate(task: TaskFacts, now: datetime | None) -> Candidate:
    later = task.enqueued_at - (now or task.enqueued_at) > timedelta(0)
    return Candidate(
        status=TaskStatus(task.status),
        is_workflow_task=task.workflow_id is not None,
        is_delayed=later and task.status == TaskStatus.PENDING,
    )


def _sample(task: TaskFacts, verdict: Verdict) -> Sample:
    return Sample(
        id=task.id, name=task.name, queue=task.queue, status=task.status, error_code=task.error_code,
        effect=verdict.effect, refusal=_refusal(verdict),
    )  # fmt: skip


def _refusal(verdict: Verdict) -> str | None:
    return verdict.refusal if isinstance(verdict, Refuse) else None


def _warnings(action: Action, moved: Sequence[TaskFacts]) -> tuple[str, ...]:
    begun = sum(task.attempt_count > 0 for task in moved)
    if action in (Action.RETRY, Action.REQUEUE) and begun:
        return (f"side effects may happen again: {begun:,} of these did start",)
    return ()
