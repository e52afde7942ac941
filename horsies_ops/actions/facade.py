"""What `Ops` does: choose, plan, apply. One line a call; what it means stands where it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.operator_actions import Action, ActionOptions
from horsies_ops.actions.plan import Selector
from horsies_ops.lazy_imports import LazyModule

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from uuid import UUID

    from horsies_ops.actions import plan as planning
    from horsies_ops.actions import queues, workflows
    from horsies_ops.actions.apply import OperatorSession
    from horsies_ops.actions.plan import Plan, SelectorLike
    from horsies_ops.actions.report import ActionProgress, ActionReport
else:
    planning = LazyModule("horsies_ops.actions.plan")
    queues = LazyModule("horsies_ops.actions.queues")
    workflows = LazyModule("horsies_ops.actions.workflows")


class OpsActions:
    """What operators do to tasks, queues and workflows.

    Tasks are named by ids or by a filter. Only those that stand as they were seen are moved; the report tells how many
    were, which were not and why. Each action is one row of the audit, a dry run too. A read-only connection refuses.
    """

    __slots__ = ()

    @property
    def session(self) -> OperatorSession:
        """The database as this operator changes it."""
        raise NotImplementedError

    async def plan(self, action: Action, selector: SelectorLike, options: ActionOptions | None = None) -> Plan:
        """What `action` would do, exactly; takes no locks and writes nothing."""
        return await planning.build_plan(self.session.database, action, Selector.of(selector), options)

    async def apply(
        self,
        plan: Plan,
        *,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> ActionReport:
        """Carry a plan out in batches of 500; `stop` ends it between two of them."""
        return await self.session.apply(plan, progress=progress, stop=stop)

    async def record_dry_run(self, plan: Plan) -> ActionReport:
        """Write a plan down as a dry run, and leave it at that."""
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
        """Make live tasks claimable at once. Running ones are stopped first, by their owners if these answer in 5 s."""
        options = ActionOptions(include_running=include_running, reason=reason, limit=limit)
        return await self.session.act(Action.REQUEUE, selector, options, dry_run=dry_run)

    async def fail(
        self,
        selector: SelectorLike,
        *,
        include_running: bool = False,
        reason: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
    ) -> ActionReport:
        """End live tasks as FAILED with OPERATOR_FAILED."""
        options = ActionOptions(include_running=include_running, reason=reason, limit=limit)
        return await self.session.act(Action.FAIL, selector, options, dry_run=dry_run)

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
        """End live tasks as CANCELLED; with `kill` the processes of running ones end within one runner beat."""
        options = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        return await self.session.act(Action.CANCEL, selector, options, dry_run=dry_run)

    async def expire(
        self, selector: SelectorLike, *, reason: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> ActionReport:
        """End tasks that have not started as EXPIRED."""
        options = ActionOptions(reason=reason, limit=limit)
        return await self.session.act(Action.EXPIRE, selector, options, dry_run=dry_run)

    async def retry(
        self, selector: SelectorLike, *, reason: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> ActionReport:
        """Send tasks again that failed, were cancelled or expired: new ids, `retry_of` tells of which."""
        options = ActionOptions(reason=reason, limit=limit)
        return await self.session.act(Action.RETRY, selector, options, dry_run=dry_run)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        """Cancel those tasks of a retry that are still PENDING."""
        return await self.session.undo_retry(report)

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        """Nothing new is claimed from the queue; what runs goes on."""
        return await queues.pause_queue(self.session, queue, reason=reason)

    async def resume_queue(self, queue: str, *, reason: str | None = None) -> ActionReport:
        return await queues.resume_queue(self.session, queue, reason=reason)

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        """Start nothing of a run, nor of the runs below it, until it is resumed; what runs may end."""
        return await workflows.pause_workflow(self.session, workflow_id, reason=reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return await workflows.resume_workflow(self.session, workflow_id, reason=reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        """End a run and all below it; with `kill`, the processes of its running tasks too."""
        return await workflows.cancel_workflow(self.session, workflow_id, kill=kill, reason=reason)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        """Let a run that has ended begin again where it failed; `nodes` of the report run again."""
        return await workflows.retry_workflow(self.session, workflow_id, reason=reason)
