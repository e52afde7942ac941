"""What the screens need of the operators' toolkit: `Ops` has it, and so has the invented system of `--demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from uuid import UUID

    from horsies.model.actions import Action, ActionOptions
    from horsies_ops.actions.plan import Plan
    from horsies_ops.actions.report import ActionReport, Progress
    from horsies_ops.actions.selector import Selector
    from horsies_ops.reads.counts import Count, Facets
    from horsies_ops.reads.filter import TaskFilter
    from horsies_ops.reads.listening import Change
    from horsies_ops.reads.lookup import Found
    from horsies_ops.reads.overview import Overview
    from horsies_ops.reads.schedules import ScheduleRow
    from horsies_ops.reads.tasks import Order, TaskDetail, TaskPage, TaskSummary
    from horsies_ops.reads.workflows import WorkflowDetail, WorkflowFilter, WorkflowPage


class Source(Protocol):
    """Reads, changes and the feed. A failure raises `HorsiesError`."""

    async def clock(self) -> datetime: ...

    def listen(self) -> AsyncIterator[Change]: ...

    async def overview(self) -> Overview: ...

    async def list_tasks(
        self,
        filter: TaskFilter = ...,  # noqa: A002  # as in `Ops`
        *,
        order: Order = ...,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage: ...

    async def count_tasks(self, filter: TaskFilter = ..., *, cap: int = 10_000) -> Count: ...  # noqa: A002

    async def facets(self, filter: TaskFilter = ...) -> Facets: ...  # noqa: A002

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]: ...

    async def task(self, task_id: str | UUID) -> TaskDetail | None: ...

    async def tasks_ending(self, short_form: str) -> tuple[Found, ...]: ...

    async def plan(self, action: Action, which: Selector, options: ActionOptions | None = None) -> Plan: ...

    async def apply(
        self, plan: Plan, *, progress: Callable[[Progress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport: ...

    async def undo_retry(self, report: ActionReport) -> ActionReport: ...

    async def list_workflows(
        self,
        filter: WorkflowFilter = ...,  # noqa: A002
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage: ...

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None: ...

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport: ...

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport: ...

    async def list_schedules(self) -> tuple[ScheduleRow, ...]: ...


class Opener(Protocol):
    """Opens the source; what may be changed through it is decided here, and by the database."""

    def __call__(self, *, read_only: bool) -> AbstractAsyncContextManager[Source]: ...
