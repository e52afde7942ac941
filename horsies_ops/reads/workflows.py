"""Workflow runs: pages by filter, details of one run, and the one-line text of a run filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from horsies.model.task import parse_id
from horsies.model.workflow.plan import WorkflowStatus
from horsies.store.queries import Query, json_value, load_queries
from horsies_ops.reads.filters import (
    FilterFault,
    FilterSyntaxError,
    FilterTerm,
    NegatedGroup,
    build_from_text,
    glob_to_like,
    parse_status,
    quote_value,
)

if TYPE_CHECKING:
    from horsies_ops.ops import Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFilter:
    """Selects runs that meet every condition that is set; `names` are globs with `*` and `?`."""

    statuses: Sequence[str] = ()
    names: Sequence[str] = ()
    root_only: bool = False
    """Leave out sub-workflows."""


EVERY_WORKFLOW: Final = WorkflowFilter()
DEFAULT_WORKFLOW_FILTER: Final = WorkflowFilter(root_only=True)
"""The filter of an empty text."""

MAX_SUB_WORKFLOWS: Final = 1_000
_MAX_ID: Final = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBase:
    """Columns common to a run in a list and a run in detail."""

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
    """A run in a list, with the number of its nodes by status."""

    total: int
    done: int
    failed: int
    skipped: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPage:
    """A page of matching runs; pass `next` as `after` to get the following page, None means the end."""

    workflows: tuple[WorkflowRow, ...]
    next: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node of a run."""

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
    """The full row of a run, with result and error."""

    output_index: int | None
    result_json: str | None
    error_json: str | None

    @property
    def result(self) -> Any:
        return json_value(self.result_json)

    @property
    def error(self) -> Any:
        return json_value(self.error_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDetail:
    """One run with its nodes in index order, and its sub-workflows by id."""

    run: WorkflowRecord
    nodes: tuple[NodeRow, ...]
    sub_workflows: Mapping[UUID, WorkflowRow]

    @property
    def counts(self) -> dict[str, int]:
        """Number of nodes by status."""
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
    ops: Ops,
    filter: WorkflowFilter = EVERY_WORKFLOW,  # noqa: A002  # the documented name
    *,
    after: UUID | None = None,
    limit: int = 50,
) -> WorkflowPage:
    """Return a page of runs, newest first; pass its `next` as `after` to get the following page."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    # One more than requested, to know whether there is a next page.
    found = await _list(ops, filter, after=after, limit=limit + 1)
    return WorkflowPage(workflows=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)


async def workflow(ops: Ops, workflow_id: str | UUID) -> WorkflowDetail | None:
    """Return everything about one run, None if it does not exist; raises ValueError for a malformed id."""
    run_id = UUID(parse_id(str(workflow_id)))
    run = await ops.reader.fetch_one(WORKFLOW_READS.detail, run_id)
    if run is None:
        return None
    sub_workflows = await _list(ops, parent_id=run_id, limit=MAX_SUB_WORKFLOWS)
    return WorkflowDetail(
        run=run,
        nodes=tuple(await ops.reader.fetch(WORKFLOW_READS.nodes, run_id)),
        sub_workflows={row.id: row for row in sub_workflows},
    )


async def _list(
    ops: Ops,
    workflow_filter: WorkflowFilter = EVERY_WORKFLOW,
    *,
    after: UUID | None = None,
    parent_id: UUID | None = None,
    limit: int,
) -> list[WorkflowRow]:
    return await ops.reader.fetch(
        WORKFLOW_READS.list,
        after or _MAX_ID,
        list(workflow_filter.statuses) or None,
        [glob_to_like(name) for name in workflow_filter.names] or None,
        workflow_filter.root_only,
        parent_id,
        limit,
    )


# Filters as text, such as `status:running,failed name:etl-*`; `sub:yes` includes sub-workflows

WORKFLOW_FILTER_KEYS: Final = ("status", "name", "sub")
_ROOT_ONLY_BY_SUB: Final = {"yes": False, "no": True}


def parse_workflow_filter(text: str) -> WorkflowFilter | FilterFault:
    """Return the filter that `text` describes, or the first fault in it."""
    return build_from_text(text, _build_filter)


def format_workflow_filter(workflow_filter: WorkflowFilter) -> str:
    """Return the text that `parse_workflow_filter` turns into this filter."""
    return " ".join(_format_conditions(workflow_filter))


def _build_filter(terms: Sequence[FilterTerm | NegatedGroup]) -> WorkflowFilter:
    statuses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    root_only = True
    for term in terms:
        if isinstance(term, NegatedGroup) or term.is_negated:
            hint = "give the statuses and names to include"
            raise FilterSyntaxError(term.position, "runs cannot be excluded", hint)
        match term.key:
            case "status":
                statuses += tuple(parse_status(value, WorkflowStatus) for value in term.values)
            case "name":
                names += tuple(value.text for value in term.values)
            case "sub":
                root_only = _root_only(term)
            case "":
                names += tuple(f"*{value.text}*" for value in term.values)
            case _:
                raise FilterSyntaxError(
                    term.position, f"unknown key {term.key!r}", f"keys: {', '.join(WORKFLOW_FILTER_KEYS)}"
                )
    return WorkflowFilter(statuses=statuses, names=names, root_only=root_only)


def _root_only(term: FilterTerm) -> bool:
    value = term.values[0]
    if value.text not in _ROOT_ONLY_BY_SUB:
        raise FilterSyntaxError(value.position, f"invalid value {value.text!r} for sub", "write yes or no")
    return _ROOT_ONLY_BY_SUB[value.text]


def _format_conditions(workflow_filter: WorkflowFilter) -> Iterator[str]:
    if workflow_filter.statuses:
        yield f"status:{','.join(status.lower() for status in workflow_filter.statuses)}"
    if workflow_filter.names:
        yield f"name:{','.join(map(quote_value, workflow_filter.names))}"
    if not workflow_filter.root_only:
        yield "sub:yes"
