"""Plans: which tasks an action selects and what it would do to each, before anything is changed."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from horsies.model.operator_actions import (
    MAX_NAMED_TASKS,
    Action,
    ActionCheck,
    ActionOptions,
    Allowed,
    Rejected,
    SkipReason,
    check_action,
)
from horsies.model.task import TaskStatus, parse_id
from horsies.store.database import Database
from horsies.store.operators import OPERATORS, Target, TargetRow
from horsies_ops.actions.report import Skipped
from horsies_ops.reads.filters import TaskFilter, format_filter
from horsies_ops.reads.search import MAX_CANDIDATES, search_ranges

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

SINGLE_KEY_LIMIT: Final = 25
"""Most tasks that are confirmed with a single key instead of typing their number."""
MAX_SAMPLES: Final = 10
ID_BATCH_SIZE: Final = 5000
UNKNOWN: Final = "UNKNOWN"
"""Status shown for an id that no task has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Tasks with the same status and error code, and the same effect of the action."""

    count: int
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSample:
    """One of the selected tasks, shown as an example."""

    id: UUID
    name: str
    queue: str
    status: str
    error_code: str | None
    effect: str
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Preview of an action as of `selector.as_of`. Nothing has been changed yet."""

    action: Action
    selector: Selector
    options: ActionOptions
    matched: int
    groups: tuple[PlanGroup, ...]
    samples: tuple[PlanSample, ...]
    warnings: tuple[str, ...]
    targets: tuple[Target, ...]
    """Tasks that will be changed, with the status and claim token they were planned in."""
    refused: tuple[Skipped, ...]
    """Tasks that will not be changed; at most MAX_NAMED_TASKS of them."""
    refused_count: int
    has_running_tasks: bool = False
    """Some targets are running under a live worker."""

    @property
    def confirmation_tier(self) -> int:
        """How the action is confirmed: 1 = one key, 2 = type the number of tasks."""
        # A filter always needs tier 2: the operator has not seen every task it matches.
        is_small = len(self.targets) <= SINGLE_KEY_LIMIT and self.selector.filter is None and not self.has_running_tasks
        return 1 if is_small else 2

    @property
    def command(self) -> str:
        """The equivalent command line, with full ids."""
        options = self.options
        arguments = ["horsies", "task", self.action.value]
        if self.selector.filter is not None:
            arguments += ["--filter", format_filter(self.selector.filter)]
        arguments += [str(task_id) for task_id in self.selector.ids or ()]
        flags = {"--include-running": options.include_running, "--kill": options.kill}
        arguments += [flag for flag, is_set in flags.items() if is_set]
        for option, value in {"--limit": options.limit, "--reason": options.reason}.items():
            arguments += [option, str(value)] if value is not None else []
        return shlex.join(arguments)

    def only(self, status: TaskStatus) -> Plan:
        """Return the plan for the targets with this status; the others are refused as changed meanwhile."""
        others = tuple(
            Skipped(target.id, SkipReason.TASK_STATE_MOVED) for target in self.targets if target.status != status
        )
        return replace(
            self,
            targets=tuple(target for target in self.targets if target.status == status),
            refused=(*others, *self.refused),
            refused_count=len(others) + self.refused_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The tasks of an action: given ids, or all that match a filter at one instant of the database clock.

    An empty filter would select the whole table and is refused. `as_of` excludes tasks that were sent or finished
    later. A plan sets it, and sets `last_id` to the newest task it found; the audit entry has both.
    """

    ids: tuple[UUID, ...] | None = None
    filter: TaskFilter | None = None
    as_of: datetime | None = None
    last_id: UUID | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("a selector needs either ids or a filter")
        if self.filter is not None and self.filter.is_empty:
            raise ValueError("an empty filter would select every task; add at least one condition")

    @classmethod
    def of_ids(cls, ids: Iterable[str | UUID]) -> Selector:
        """Select these tasks, without duplicates, in this order; raises ValueError for a malformed id."""
        parsed = (task_id if isinstance(task_id, UUID) else UUID(parse_id(task_id)) for task_id in ids)
        return cls(ids=tuple(dict.fromkeys(parsed)))

    @classmethod
    def matching(cls, filter: TaskFilter, *, as_of: datetime | None = None) -> Selector:  # noqa: A002  # the documented name
        """Select all tasks that match now, or that matched at `as_of`."""
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
        """Return the JSON stored in the audit log."""
        if self.filter is None:
            return {"ids": [str(task_id) for task_id in (self.ids or ())[:MAX_NAMED_TASKS]]}
        return {
            "filter": json.loads(self.filter.to_json()),
            "as_of": None if self.as_of is None else self.as_of.isoformat(),
            "last_id": None if self.last_id is None else str(self.last_id),
        }


SelectorLike: TypeAlias = "Selector | TaskFilter | str | UUID | Iterable[str | UUID]"
"""Anything that selects tasks: a selector, a filter, one id or several."""


async def plan(ops: Ops, action: Action, selector: SelectorLike, options: ActionOptions | None = None) -> Plan:
    """Check the action against every selected task; takes no locks and writes nothing."""
    database, selector = ops.session.database, Selector.of(selector)
    builder = PlanBuilder(action, options or ActionOptions())
    if builder.options.kill and action is not Action.CANCEL:
        raise ValueError("kill works only with cancel; requeue stops running tasks itself, other actions let them run")
    now = await database.fetch_single(OPERATORS.server_time)
    async for rows in _select_targets(database, selector, builder.options.limit):
        builder.add(rows)
    if selector.ids is not None:
        builder.add_unknown(selector.ids[: builder.options.limit])
    return builder.build(selector if selector.as_of else replace(selector, as_of=now))


async def _select_targets(
    database: Database, selector: Selector, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    """Yield at most `limit` selected tasks, in batches; those of a filter newest first."""
    if selector.ids is not None:
        ids = selector.ids[:limit]
        for start in range(0, len(ids), ID_BATCH_SIZE):
            yield await database.fetch(OPERATORS.targets, ids[start : start + ID_BATCH_SIZE], None)
    elif selector.filter is not None:
        async for rows in _select_by_filter(database, selector.filter, selector.as_of, limit):
            yield rows


async def _select_by_filter(
    database: Database, task_filter: TaskFilter, as_of: datetime | None, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    left = limit
    # From the newest task backwards, so that tasks sent meanwhile are never reached.
    async for searched in search_ranges(database, task_filter, max_matches=MAX_CANDIDATES):
        statuses = {match.id: match.status for match in searched.matches}
        rows = await database.fetch(OPERATORS.targets, list(statuses), as_of)
        # A task that changed its status between the two statements may no longer match.
        rows = [row for row in reversed(rows) if row.status == statuses[row.id]][:left]
        yield rows
        left = None if left is None else left - len(rows)
        if left == 0:
            return


class PlanBuilder:
    """Collects the selected tasks and what the action would do to each."""

    def __init__(self, action: Action, options: ActionOptions) -> None:
        self.action = action
        self.options = options
        self._groups: Counter[tuple[str, str | None, str, str | None]] = Counter()
        self._samples: list[PlanSample] = []
        self._targets: list[Target] = []
        self._refused: list[Skipped] = []
        self._seen: set[UUID] = set()
        # Targets that are running under a live worker, or without one, and those that have run at all.
        self._running, self._orphaned, self._have_run = 0, 0, 0

    def add(self, rows: Iterable[TargetRow]) -> None:
        for row in rows:
            check = check_action(self.action, row, self.options)
            self._count(row.id, row.status, row.error_code, check)
            self._seen.add(row.id)
            if len(self._samples) < MAX_SAMPLES:
                self._samples.append(_sample(row, check))
            if isinstance(check, Allowed):
                self._targets.append(Target(id=row.id, status=row.status, claim_token=row.claim_token))
                is_running = row.status == TaskStatus.RUNNING
                self._running += is_running and row.has_live_owner
                self._orphaned += is_running and not row.has_live_owner
                self._have_run += row.has_run

    def add_unknown(self, ids: Iterable[UUID]) -> None:
        """Refuse the ids for which no task was found."""
        unknown = Rejected(SkipReason.TASK_NOT_FOUND, "skipped: not found")
        for task_id in ids:
            if task_id not in self._seen:
                self._count(task_id, UNKNOWN, None, unknown)

    def build(self, selector: Selector) -> Plan:
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
            # Groups that will be changed come before refused ones.
            groups=tuple(sorted(groups, key=lambda group: group.refusal is not None)),
            samples=tuple(self._samples),
            warnings=tuple(self._warnings()),
            targets=tuple(self._targets),
            refused=tuple(self._refused),
            refused_count=sum(group.count for group in groups if group.refusal is not None),
            has_running_tasks=self._running > 0,
        )

    def _warnings(self) -> Iterator[str]:
        if self.action in (Action.RETRY, Action.REQUEUE) and self._have_run:
            yield f"side effects may happen again: {self._have_run:,} of these did start"
        if self.action is Action.REQUEUE and self._orphaned:
            yield f"{self._orphaned:,} have no live worker to stop them: the old and new attempt may overlap"
        running = self._running + self._orphaned
        if self.action in (Action.CANCEL, Action.FAIL) and running and not self.options.kill:
            yield f"{running:,} running tasks are not interrupted; their results will be discarded"

    def _count(self, task_id: UUID, status: str, error_code: str | None, check: ActionCheck) -> None:
        refusal = check.reason if isinstance(check, Rejected) else None
        self._groups[(status, error_code, check.effect, refusal)] += 1
        if refusal is not None and len(self._refused) < MAX_NAMED_TASKS:
            self._refused.append(Skipped(task_id, refusal))


def _sample(row: TargetRow, check: ActionCheck) -> PlanSample:
    return PlanSample(
        id=row.id,
        name=row.task_name,
        queue=row.queue_name,
        status=row.status,
        error_code=row.error_code,
        effect=check.effect,
        refusal=check.reason if isinstance(check, Rejected) else None,
    )
