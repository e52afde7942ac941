"""What an action would do, as a value: shown, confirmed, and then carried out."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

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
from horsies.model.task import TaskStatus, parse_id
from horsies.store.database import Database
from horsies.store.operators import OPERATORS, Target, TargetRow
from horsies_ops.reads.filters import TaskFilter, format_filter
from horsies_ops.reads.search import MAX_CANDIDATES, search_ranges

SINGLE_KEY_LIMIT: Final = 25
"""So many rows can be taken in at a glance."""


class Skipped(NamedTuple):
    """A task that was passed over, and the code that says why."""

    id: UUID
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Tasks that stand alike and share a fate."""

    count: int
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """One of the tasks, to recognise the others by."""

    id: UUID
    name: str
    queue: str
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an action would do, exactly, as things stood at `selector.as_of`. Nothing is changed yet."""

    action: Action
    selector: Selector
    options: ActionOptions
    matched: int
    groups: tuple[PlanGroup, ...]
    samples: tuple[PlanSample, ...]
    warnings: tuple[str, ...]
    targets: tuple[Target, ...]
    """Those that would be moved, as they stood."""
    refused: tuple[Skipped, ...]
    """Those that would not, the first thousand of them."""
    refused_count: int
    has_running_tasks: bool = False
    """Some are running under a worker that lives."""

    @property
    def confirmation_tier(self) -> int:
        """How much of a confirmation is due: 1, a key; 2, the number typed out."""
        is_small = len(self.targets) <= SINGLE_KEY_LIMIT and self.selector.filter is None and not self.has_running_tasks
        return 1 if is_small else 2

    def only(self, status: TaskStatus) -> Plan:
        """The same for tasks of this status alone; the others are passed over as moved."""
        others = tuple(Skipped(each.id, SkipReason.TASK_STATE_MOVED) for each in self.targets if each.status != status)
        return replace(
            self,
            targets=tuple(each for each in self.targets if each.status == status),
            refused=(*others, *self.refused),
            refused_count=len(others) + self.refused_count,
        )

    @property
    def command(self) -> str:
        """The command line that does the same, with whole ids."""
        return shlex.join(
            ["horsies", "task", self.action, *_selector_arguments(self.selector), *_option_arguments(self.options)]
        )


def _selector_arguments(selector: Selector) -> list[str]:
    if selector.filter is not None:
        return ["--filter", format_filter(selector.filter)]
    return [str(each) for each in selector.ids or ()]


def _option_arguments(options: ActionOptions) -> list[str]:
    flags = {"--include-running": options.include_running, "--kill": options.kill}
    values = {"--limit": options.limit, "--reason": options.reason}
    given = [each for name, value in values.items() if value is not None for each in (name, str(value))]
    return [*(name for name, is_set in flags.items() if is_set), *given]


# The tasks that a selector means, as they stand.

ID_BATCH_SIZE: Final = 5000


async def select_targets(
    database: Database, selector: Selector, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    """At most `limit` of them, some thousand at a time; of a filter's, the newest first."""
    if selector.ids is not None:
        for start in range(0, len(selector.ids[:limit]), ID_BATCH_SIZE):
            yield await database.fetch(OPERATORS.targets, selector.ids[:limit][start : start + ID_BATCH_SIZE], None)
    elif selector.filter is not None:
        async for rows in _matching(database, selector, selector.filter, limit):
            yield rows


async def _matching(
    database: Database, selector: Selector, wanted: TaskFilter, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    """Stretch by stretch from the newest, so that what arrives meanwhile is never met."""
    left = limit
    async for stretch in search_ranges(database, wanted, max_matches=MAX_CANDIDATES):
        shown = {match.id: match.status for match in stretch.matches}
        rows = await database.fetch(OPERATORS.targets, list(shown), selector.as_of)
        # One that has moved between the two looks may not match any more.
        rows = [row for row in reversed(rows) if row.status == shown[row.id]][:left]
        yield rows
        left = None if left is None else left - len(rows)
        if left == 0:
            return


# Working out what an action would do, before anything is changed.

SAMPLES: Final = 10
MAX_SKIPPED_LISTED: Final = 1000
"""How many tasks that were passed over are named one by one; all are counted."""
UNKNOWN: Final = "UNKNOWN"
"""Stands for the status of an id that no task has."""


async def build_plan(
    database: Database, action: Action, selector: Selector, options: ActionOptions | None = None
) -> Plan:
    """Look at every task that is meant and say what would become of it; takes no locks and writes nothing."""
    draft = _Draft(action, options or ActionOptions())
    if draft.options.kill and action is not Action.CANCEL:
        raise ValueError("kill is for cancel; requeue stops what runs by itself, other actions let it run")
    (now,) = await database.fetch(OPERATORS.server_time)
    async for rows in select_targets(database, selector, draft.options.limit):
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
        self._samples: list[PlanSample] = []
        self._targets: list[Target] = []
        self._refused: list[Skipped] = []
        self._seen: set[UUID] = set()
        self._runs = _RunningCounts()

    def add(self, rows: Iterable[TargetRow]) -> None:
        for row in rows:
            verdict = check_action(self.action, _candidate(row), self.options)
            self._count(row.id, row.status, row.error_code, verdict)
            self._seen.add(row.id)
            if len(self._samples) < SAMPLES:
                self._samples.append(_sample(row, verdict))
            if isinstance(verdict, Allowed):
                self._targets.append(Target(id=row.id, status=row.status, claim_token=row.claim_token))
                self._runs.add(row)

    def add_unknown(self, ids: Iterable[UUID]) -> None:
        unknown = Rejected(SkipReason.TASK_NOT_FOUND, "skipped: there is no such task")
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
            has_running_tasks=self._runs.live > 0,
        )

    def _count(self, task_id: UUID, status: str, error_code: str | None, verdict: ActionCheck) -> None:
        refusal = verdict.reason if isinstance(verdict, Rejected) else None
        self._groups[(status, error_code, verdict.effect, refusal)] += 1
        if refusal is not None and len(self._refused) < MAX_SKIPPED_LISTED:
            self._refused.append(Skipped(task_id, refusal))


class _RunningCounts:
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


def _candidate(row: TargetRow) -> ActionTarget:
    return ActionTarget(
        status=TaskStatus(row.status),
        is_workflow_task=row.is_workflow_task,
        is_delayed=row.is_delayed,
        is_overdue=row.is_overdue,
        no_restart=row.no_restart,
    )


def _sample(row: TargetRow, verdict: ActionCheck) -> PlanSample:
    return PlanSample(
        id=row.id,
        name=row.task_name,
        queue=row.queue_name,
        status=row.status,
        error_code=row.error_code,
        effect=verdict.effect,
        refusal=verdict.reason if isinstance(verdict, Rejected) else None,
    )


# Which tasks an action is about.


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Tasks by their ids, or all that match a filter at an instant of the database's clock.

    A filter that names nothing would mean the whole table and is refused. `as_of` keeps out what came or ended later;
    a plan sets it, and `last_id`, the newest task that it found, so that what arrives afterwards is never included.
    """

    ids: tuple[UUID, ...] | None = None
    filter: TaskFilter | None = None
    as_of: datetime | None = None
    last_id: UUID | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("a selector has ids or a filter, and not both")
        if self.filter is not None and self.filter.is_empty:
            raise ValueError("a filter that names nothing means every task there is; say which are meant")

    @classmethod
    def of_ids(cls, ids: Iterable[str | UUID]) -> Selector:
        """These tasks, each once, in this order; `ValueError` for what is no id."""
        known = (each if isinstance(each, UUID) else UUID(parse_id(each)) for each in ids)
        return cls(ids=tuple(dict.fromkeys(known)))

    @classmethod
    def matching(cls, filter: TaskFilter, *, as_of: datetime | None = None) -> Selector:  # noqa: A002  # the documented name
        """All that match now, or did at `as_of`."""
        return cls(filter=filter, as_of=as_of)

    @classmethod
    def of(cls, selector: SelectorLike) -> Selector:
        match selector:
            case Selector():
                return selector
            case TaskFilter():
                return cls.matching(selector)
            case str() | UUID():
                return cls.of_ids([selector])
            case _:
                return cls.of_ids(selector)

    def to_audit(self) -> dict[str, object]:
        """What the audit keeps of it."""
        if self.filter is None:
            return {"ids": [str(each) for each in (self.ids or ())[:1000]]}
        return {
            "filter": json.loads(self.filter.to_json()),
            "as_of": None if self.as_of is None else self.as_of.isoformat(),
            "last_id": None if self.last_id is None else str(self.last_id),
        }


SelectorLike: TypeAlias = "Selector | TaskFilter | str | UUID | Iterable[str | UUID]"
"""How tasks may be named: a selector, a filter, one id or several."""
