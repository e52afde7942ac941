"""`OpsActions`: the actions of `Ops`, each a call into the module that implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.operator_actions import Action, ActionOptions
from horsies_ops.actions.plan import Selector, build_plan
from horsies_ops.lazy_imports import LazyModule

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from uuid import UUID

    from horsies_ops.actions import queues, workflows
    from horsies_ops.actions.apply import OperatorSession
    from horsies_ops.actions.plan import Plan, SelectorLike
    from horsies_ops.actions.report import ActionProgress, ActionReport
else:
    queues = LazyModule("horsies_ops.actions.queues")
    workflows = LazyModule("horsies_ops.actions.workflows")


class OpsActions:
    """Actions of operators on tasks, queues and workflows.

    Tasks are selected by ids or by a filter. Only tasks still in the state they were planned in are changed; the report
    counts them and lists the skipped ones with the reason. Every action has one audit entry, also a dry run. On a
    read-only connection every action raises `Refused`.
    """

    __slots__ = ()

    @property
    def session(self) -> OperatorSession:
        """The database and the operator who changes it."""
        raise NotImplementedError

    async def plan(self, action: Action, selector: SelectorLike, options: ActionOptions | None = None) -> Plan:
        """Preview `action`; takes no locks and writes nothing."""
        return await build_plan(self.session.database, action, Selector.of(selector), options)

    async def apply(
        self,
        plan: Plan,
        *,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> ActionReport:
        """Apply a plan in batches of 500; `stop` ends it after the current batch."""
        return await self.session.apply(plan, progress=progress, stop=stop)

    async def record_dry_run(self, plan: Plan) -> ActionReport:
        """Record a plan in the audit log as a dry run, without applying it."""
        return await self.session.record_dry_run(plan)

    async def requeue(
        self,
        selector: SelectorLike,
        *,
        include_running: bool = False,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> ActionReport:
        """Make unfinished tasks claimable now. Workers get 5 s to stop running ones, which are then requeued anyway."""
        options = ActionOptions(include_running=include_running, reason=reason, limit=limit)
        return await self.session.plan_and_apply(Action.REQUEUE, selector, options, dry_run=dry_run)

    async def fail(
        self,
        selector: SelectorLike,
        *,
        include_running: bool = False,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> ActionReport:
        """Finish tasks as FAILED with OPERATOR_FAILED."""
        options = ActionOptions(include_running=include_running, reason=reason, limit=limit)
        return await self.session.plan_and_apply(Action.FAIL, selector, options, dry_run=dry_run)

    async def cancel(
        self,
        selector: SelectorLike,
        *,
        include_running: bool = False,
        kill: bool = False,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> ActionReport:
        """Finish tasks as CANCELLED; `kill` also kills the processes of running ones within one runner heartbeat."""
        options = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        return await self.session.plan_and_apply(Action.CANCEL, selector, options, dry_run=dry_run)

    async def expire(
        self, selector: SelectorLike, *, reason: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> ActionReport:
        """Finish tasks that have not started as EXPIRED."""
        options = ActionOptions(reason=reason, limit=limit)
        return await self.session.plan_and_apply(Action.EXPIRE, selector, options, dry_run=dry_run)

    async def retry(
        self, selector: SelectorLike, *, reason: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> ActionReport:
        """Send FAILED, CANCELLED or EXPIRED tasks again, with new ids and `retry_of` set to the old ones."""
        options = ActionOptions(reason=reason, limit=limit)
        return await self.session.plan_and_apply(Action.RETRY, selector, options, dry_run=dry_run)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        """Cancel the tasks that a retry created and that are still PENDING."""
        return await self.session.undo_retry(report)

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        """Stop claims from the queue; tasks in flight continue."""
        return await queues.pause_queue(self.session, queue, reason=reason)

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return await queues.resume_queue(self.session, queue, reason=reason)

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        """Start no more nodes of a run and its sub-workflows until it is resumed; running tasks continue."""
        return await workflows.pause_workflow(self.session, workflow_id, reason=reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return await workflows.resume_workflow(self.session, workflow_id, reason=reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        """Cancel a run and its sub-workflows; `kill` also kills the processes of their running tasks."""
        return await workflows.cancel_workflow(self.session, workflow_id, kill=kill, reason=reason)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        """Run the failed nodes of a finished run again; the report has their number in `retried_nodes`."""
        return await workflows.retry_workflow(self.session, workflow_id, reason=reason)
