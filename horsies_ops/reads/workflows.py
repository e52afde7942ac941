"""Runs of workflows as operators see them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from horsies.model.task import parse_id
from horsies.model.workflow.plan import WorkflowStatus
from horsies.store.queries import Query, load_queries
from horsies_ops.reads.filters import (
    FilterFault,
    FilterParser,
    FilterSyntaxError,
    FilterTerm,
    FilterValue,
    NegatedGroup,
    glob_to_like,
    quote_value,
)

if TYPE_CHECKING:
    from horsies.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFilter:
    """Runs for which every part that is given holds; `names` are globs with `*` and `?`."""

    statuses: Sequence[str] = ()
    names: Sequence[str] = ()
    root_only: bool = False
    """Leave out runs that are a step of another."""


EVERY_WORKFLOW: Final = WorkflowFilter()


MAX_CHILDREN: Final = 1_000

_LAST: Final = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBase:
    """The row of a run, without its nodes."""

    id: UUID
    name: str
    status: str
    definition_key: str | None
    on_error: str
    generation: int
    parent_id: UUID | None
    root_id: UUID
    depth: int
    created_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    completed_at: datetime | None
    error_code: str | None
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow(WorkflowBase):
    """A run in a list; `done`, `failed` and `skipped` of `total` nodes have ended."""

    total: int
    done: int
    failed: int
    skipped: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPage:
    """Some of the matching runs; `next` is what to give as `after` for those that follow, None at the end."""

    workflows: tuple[WorkflowRow, ...]
    next: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One step of a run."""

    index: int
    node_id: str
    name: str
    status: str
    join: str
    min_success: int | None
    allow_failed_deps: bool
    dependencies: Sequence[int]
    task_id: UUID | None
    is_subworkflow: bool
    sub_workflow_id: UUID | None
    queue: str | None
    priority: int | None
    started_at: datetime | None
    completed_at: datetime | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRecord(WorkflowBase):
    """The row of a run, result and error included."""

    output_index: int | None
    result_json: str | None
    error_json: str | None

    @property
    def result(self) -> Any:
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def error(self) -> Any:
        return None if self.error_json is None else json.loads(self.error_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDetail:
    """One run with its nodes in the order of their indices, and the runs that are steps of it by their ids."""

    run: WorkflowRecord
    nodes: tuple[NodeRow, ...]
    children: Mapping[UUID, WorkflowRow]

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes are in each state that occurs."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            counts[node.status] = counts.get(node.status, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowReadQueries:
    list: Query[WorkflowRow]
    detail: Query[WorkflowRecord]
    nodes: Query[NodeRow]


WORKFLOW_READS = load_queries(WorkflowReadQueries, "horsies_ops.reads", "workflows")


async def list_workflows(
    database: Database, wanted: WorkflowFilter = EVERY_WORKFLOW, *, after: UUID | None = None, limit: int = 50
) -> WorkflowPage:
    """A page of matching runs, the newest first."""
    if limit < 1:
        raise ValueError("limit must be at least 1")
    # One more than asked for tells whether anything follows.
    found = await _list(database, wanted, after=after, limit=limit + 1)
    return WorkflowPage(workflows=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)


async def workflow_detail(database: Database, workflow_id: str | UUID) -> WorkflowDetail | None:
    """Everything about one run, or None where there is none; `ValueError` for what is no id."""
    identity = UUID(parse_id(str(workflow_id)))
    run = await database.fetch_one(WORKFLOW_READS.detail, identity)
    if run is None:
        return None
    children = await _list(database, parent=identity, limit=MAX_CHILDREN)
    return WorkflowDetail(
        run=run,
        nodes=tuple(await database.fetch(WORKFLOW_READS.nodes, identity)),
        children={child.id: child for child in children},
    )


async def _list(
    database: Database,
    wanted: WorkflowFilter = EVERY_WORKFLOW,
    *,
    after: UUID | None = None,
    parent: UUID | None = None,
    limit: int,
) -> list[WorkflowRow]:
    statuses, names = list(wanted.statuses) or None, [glob_to_like(name) for name in wanted.names] or None
    arguments = (after or _LAST, statuses, names, wanted.root_only, parent, limit)
    return await database.fetch(WORKFLOW_READS.list, *arguments)


# One line of text for a filter of runs: `status:running,failed name:etl-*`; with `sub:yes` steps of other runs too.

WORKFLOW_FILTER_KEYS: Final = ("status", "name", "sub")
DEFAULT_WORKFLOW_FILTER: Final = WorkflowFilter(root_only=True)
"""What no text at all says: every run that is not a step of another."""

_SUB: Final = {"yes": False, "no": True}


def parse_workflow_filter(text: str) -> WorkflowFilter | FilterFault:
    """The filter that `text` says, or the first thing wrong with it."""
    try:
        return _filter_of(FilterParser(text).parse())
    except FilterSyntaxError as fault:
        return FilterFault(position=fault.position, message=fault.message, hint=fault.hint)


def format_workflow_filter(wanted: WorkflowFilter) -> str:
    """The line from which `parse_workflow_filter` makes this filter."""
    return " ".join(_format_conditions(wanted))


def _filter_of(parts: list[FilterTerm | NegatedGroup]) -> WorkflowFilter:
    statuses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    root_only = True
    for part in parts:
        if isinstance(part, NegatedGroup) or part.is_negated:
            raise FilterSyntaxError(part.position, "runs cannot be excluded", "name those that are wanted")
        match part.key:
            case "status":
                statuses += tuple(_status(value) for value in part.values)
            case "name":
                names += tuple(value.text for value in part.values)
            case "sub":
                root_only = _root_only(part)
            case "":
                names += tuple(f"*{value.text}*" for value in part.values)
            case _:
                raise FilterSyntaxError(
                    part.position, f"there is no key {part.key!r}", f"keys are {', '.join(WORKFLOW_FILTER_KEYS)}"
                )
    return WorkflowFilter(statuses=statuses, names=names, root_only=root_only)


def _status(value: FilterValue) -> str:
    try:
        return WorkflowStatus(value.text.upper())
    except ValueError:
        known = ", ".join(WorkflowStatus).lower()
        raise FilterSyntaxError(value.position, f"there is no status {value.text!r}", f"one of {known}") from None


def _root_only(part: FilterTerm) -> bool:
    value = part.values[0]
    if value.text not in _SUB:
        raise FilterSyntaxError(value.position, f"{value.text!r} says nothing of sub", f"write {' or '.join(_SUB)}")
    return _SUB[value.text]


def _format_conditions(wanted: WorkflowFilter) -> Iterator[str]:
    if wanted.statuses:
        yield f"status:{','.join(status.lower() for status in wanted.statuses)}"
    if wanted.names:
        yield f"name:{','.join(map(quote_value, wanted.names))}"
    if not wanted.root_only:
        yield "sub:yes"
