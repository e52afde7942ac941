"""Working out what an action would do, before anything is changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from horsies.model.actions import Accept, Action, ActionOptions, Candidate, Refusal, Refuse, judge
from horsies.model.task import TaskStatus
from horsies.store.actions import ACTIONS, Target
from horsies_ops.actions.choosing import chosen
from horsies_ops.actions.plan import Plan, PlanGroup, Sample, Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from horsies.model.actions import Verdict
    from horsies.store.actions import TargetRow
    from horsies.store.db import Database
    from horsies_ops.actions.selector import Selector

SAMPLES: Final = 10
MOST_NAMED: Final = 1000
"""How many tasks that were passed over are named one by one; all are counted."""
UNKNOWN: Final = "UNKNOWN"
"""Stands for the status of an id that no task has."""


async def plan(database: Database, action: Action, selector: Selector, options: ActionOptions | None = None) -> Plan:
    """Look at every task that is meant and say what would become of it; takes no locks and writes nothing."""
    draft = _Draft(action, options or ActionOptions())
    if draft.options.kill and action is not Action.CANCEL:
        raise ValueError("kill is for cancel; requeue stops what runs by itself, other actions let it run")
    (now,) = await database.fetch(ACTIONS.now)
    async for rows in chosen(database, selector, draft.options.limit):
        draft.add(rows)
    if selector.ids is not None:
        draft.add_unknown(selector.ids[: draft.options.limit])
    return draft.finished(selector if selector.as_of else replace(selector, as_of=now.at))


class _Draft:
    """A plan in the making."""

    def __init__(self, action: Action, options: ActionOptions) -> None:
        self.action = action
        self.options = options
        self._groups: Counter[tuple[str, str | None, str, str | None]] = Counter()
        self._samples: list[Sample] = []
        self._targets: list[Target] = []
        self._refused: list[Skipped] = []
        self._seen: set[UUID] = set()
        self._runs = _Runs()

    def add(self, rows: Iterable[TargetRow]) -> None:
        for row in rows:
            verdict = judge(self.action, _candidate(row), self.options)
            self._count(row.id, row.status, row.error_code, verdict)
            self._seen.add(row.id)
            if len(self._samples) < SAMPLES:
                self._samples.append(_sample(row, verdict))
            if isinstance(verdict, Accept):
                self._targets.append(Target(id=row.id, status=row.status, claim_token=row.claim_token))
                self._runs.add(row)

    def add_unknown(self, ids: Iterable[UUID]) -> None:
        unknown = Refuse(Refusal.TASK_NOT_FOUND, "skipped: there is no such task")
        for task_id in ids:
            if task_id not in self._seen:
                self._count(task_id, UNKNOWN, None, unknown)

    def finished(self, selector: Selector) -> Plan:
        groups = [
            PlanGroup(count=count, status=status, error_code=code, effect=effect, refusal=refusal)
            for (status, code, effect, refusal), count in self._groups.most_common()
        ]
        last_id = max(self._seen, default=None) if selector.filter is not None else None
        return Plan(
            action=self.action,
            selector=replace(selector, last_id=last_id),
            options=self.options,
            matched=len(self._seen),
            # What will happen comes before what will not.
            groups=tuple(sorted(groups, key=lambda group: group.refusal is not None)),
            samples=tuple(self._samples),
            warnings=self._runs.warnings(self.action, self.options),
            targets=tuple(self._targets),
            refused=tuple(self._refused),
            refused_count=sum(group.count for group in groups if group.refusal is not None),
            has_live_runs=self._runs.live > 0,
        )

    def _count(self, task_id: UUID, status: str, error_code: str | None, verdict: Verdict) -> None:
        refusal = verdict.refusal if isinstance(verdict, Refuse) else None
        self._groups[(status, error_code, verdict.effect, refusal)] += 1
        if refusal is not None and len(self._refused) < MOST_NAMED:
            self._refused.append(Skipped(task_id, refusal))


class _Runs:
    """How many of the tasks to be moved run or have run, which is what there is to warn of."""

    def __init__(self) -> None:
        self.live = 0
        self._orphaned = 0
        self._begun = 0

    def add(self, row: TargetRow) -> None:
        is_running = row.status == TaskStatus.RUNNING
        self.live += is_running and row.has_live_owner
        self._orphaned += is_running and not row.has_live_owner
        self._begun += row.has_run

    def warnings(self, action: Action, options: ActionOptions) -> tuple[str, ...]:
        running = self.live + self._orphaned
        said: list[str] = []
        if action in (Action.RETRY, Action.REQUEUE) and self._begun:
            said.append(f"side effects may happen again: {self._begun:,} of these did start")
        if action is Action.REQUEUE and self._orphaned:
            said.append(
                f"{self._orphaned:,} have no live owner to stop them: what still runs may overlap with a new run"
            )
        if action in (Action.CANCEL, Action.FAIL) and running and not options.kill:
            said.append(f"the code of {running:,} runs on to its end; what it returns is refused")
        return tuple(said)


def _candidate(row: TargetRow) -> Candidate:
    return Candidate(
        status=TaskStatus(row.status),
        is_workflow_task=row.is_workflow_task,
        is_delayed=row.is_delayed,
        is_overdue=row.is_overdue,
        no_restart=row.no_restart,
    )


def _sample(row: TargetRow, verdict: Verdict) -> Sample:
    return Sample(
        id=row.id,
        name=row.task_name,
        queue=row.queue_name,
        status=row.status,
        error_code=row.error_code,
        effect=verdict.effect,
        refusal=verdict.refusal if isinstance(verdict, Refuse) else None,
    )
