"""What the invented system answers about runs, and what can be done to them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.errors import Refused
from horsies.model.actions import Refusal
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.actions.plan import Skipped
from horsies_ops.actions.report import ActionReport
from horsies_ops.reads.workflows import EVERY_WORKFLOW, WorkflowDetail, WorkflowFilter, WorkflowPage

if TYPE_CHECKING:
    from horsies_ops.reads.workflows import NodeRow, WorkflowFacts
    from horsies_tui.demo.flows import Flows
    from horsies_tui.demo.system import System

_OPEN = {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, WorkflowTaskStatus.ENQUEUED}
_LOST = {WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}


class FlowAnswers:
    """A part of the source."""

    system: System
    _read_only: bool

    @property
    def _flows(self) -> Flows:
        return self.system.flows

    async def list_workflows(
        self,
        filter: WorkflowFilter = EVERY_WORKFLOW,  # noqa: A002  # as in `Ops`
        *,
        after: UUID | None = None,
        limit: int = 50,
    ) -> WorkflowPage:
        runs = sorted((run for run in self._flows.runs.values() if _fits(run, filter)), key=_identity, reverse=True)
        following = [run.id for run in runs if after is None or run.id < after]
        page = tuple(self._flows.row(each) for each in following[:limit])
        return WorkflowPage(workflows=page, next=page[-1].id if len(following) > limit else None)

    async def workflow(self, workflow_id: str | UUID) -> WorkflowDetail | None:
        return self._flows.detail(UUID(str(workflow_id)))

    async def pause_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._turn("pause_workflow", workflow_id, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, reason)

    async def resume_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        return self._turn("resume_workflow", workflow_id, WorkflowStatus.PAUSED, WorkflowStatus.RUNNING, reason)

    async def cancel_workflow(
        self, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
    ) -> ActionReport:
        del kill, reason
        run = self._may_change(workflow_id)
        is_open = not WorkflowStatus(run.status).is_terminal
        if is_open:
            self._give(run, _OPEN, WorkflowTaskStatus.SKIPPED)
            self._flows.change(run.id, status=WorkflowStatus.CANCELLED, completed_at=self.system.now())
        return _report("cancel_workflow", run, is_changed=is_open)

    async def retry_workflow(self, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
        del reason
        run = self._may_change(workflow_id)
        lost = sum(node.status in _LOST for node in self._flows.nodes[run.id])
        is_over = WorkflowStatus(run.status).is_terminal and lost > 0
        if is_over:
            self._give(run, _LOST, WorkflowTaskStatus.PENDING)
            self._flows.change(
                run.id, status=WorkflowStatus.RUNNING, completed_at=None, error_code=None, generation=run.generation + 1
            )
        return _report("retry_workflow", run, is_changed=is_over, nodes=lost)

    def _turn(
        self,
        action: str,
        workflow_id: str | UUID,
        before: WorkflowStatus,
        after: WorkflowStatus,
        reason: str | None,  # noqa: ARG002  # nobody reads the log of an invented system
    ) -> ActionReport:
        run = self._may_change(workflow_id)
        if run.status == before:
            paused_at = self.system.now() if after is WorkflowStatus.PAUSED else None
            self._flows.change(run.id, status=after, paused_at=paused_at)
        return _report(action, run, is_changed=run.status == before)

    def _give(self, run: WorkflowFacts, which: set[WorkflowTaskStatus], status: WorkflowTaskStatus) -> None:
        self._flows.set_nodes(
            run.id, {node.index: _as(node, status) for node in self._flows.nodes[run.id] if node.status in which}
        )

    def _may_change(self, workflow_id: str | UUID) -> WorkflowFacts:
        if self._read_only:
            raise Refused("this connection is read-only")
        return self._flows.runs[UUID(str(workflow_id))]


def _fits(run: WorkflowFacts, wanted: WorkflowFilter) -> bool:
    return (
        (not wanted.statuses or run.status in wanted.statuses)
        and (not wanted.names or any(fnmatchcase(run.name, name) for name in wanted.names))
        and not (wanted.root_only and run.parent_id is not None)
    )


def _identity(run: WorkflowFacts) -> UUID:
    return run.id


def _as(node: NodeRow, status: WorkflowTaskStatus) -> NodeRow:
    return replace(
        node, status=status, task_id=None, started_at=None, completed_at=None, error_code=None, error_message=None
    )


def _report(action: str, run: WorkflowFacts, *, is_changed: bool, nodes: int = 0) -> ActionReport:
    skipped = () if is_changed else (Skipped(run.id, Refusal.WORKFLOW_STATE_NOT_ALLOWED),)
    return ActionReport(
        action=action, matched=1, affected=int(is_changed), skipped=skipped, skipped_count=len(skipped),
        audit_id=5522, nodes=nodes if is_changed else 0,
    )  # fmt: skip
