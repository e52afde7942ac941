"""Runs of workflows in the invented system: what is due is started by the rule that real runs go by."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.model.workflow.outcome import outcome_of
from horsies.model.workflow.plan import JoinType
from horsies.model.workflow.progress import NodeState, Skipped, readiness
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowFacts, WorkflowRow
from horsies_tui.demo.blueprints import BY_NAME, ONBOARD, Blueprint, Step
from horsies_tui.demo.catalogue import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from horsies_tui.demo.system import System

NEW_EVERY = 80
"""Steps of the system between two new runs."""

_KINDS = {kind.name: kind for kind in KINDS}
_OF_TASK = {
    TaskStatus.RUNNING: WorkflowTaskStatus.RUNNING,
    TaskStatus.COMPLETED: WorkflowTaskStatus.COMPLETED,
    TaskStatus.FAILED: WorkflowTaskStatus.FAILED,
    TaskStatus.CANCELLED: WorkflowTaskStatus.FAILED,
    TaskStatus.EXPIRED: WorkflowTaskStatus.FAILED,
}
_HEAD = (
    "id", "name", "status", "definition_key", "on_error", "generation", "parent_id", "root_id", "depth",
    "created_at", "started_at", "paused_at", "completed_at", "error_code",
)  # fmt: skip


class Flows:
    """Runs by id. Their tasks are tasks of the system, and end there."""

    def __init__(self, system: System) -> None:
        self.runs: dict[UUID, WorkflowFacts] = {}
        self.nodes: dict[UUID, tuple[NodeRow, ...]] = {}
        self._system = system
        self._numbers = count(0xF0)
        self._steps = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """How many runs are in each state."""
        return Counter(run.status for run in self.runs.values())

    def begin(
        self, blueprint: Blueprint, *, at: datetime | None = None, parent: WorkflowFacts | None = None
    ) -> WorkflowFacts:
        """A run of which nothing has started."""
        at = at or self._system.now()
        identity = UUID(
            int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | next(self._numbers) * 0x9E3779B1
        )
        run = WorkflowFacts(
            id=identity, name=blueprint.name, status=WorkflowStatus.RUNNING, definition_key=blueprint.name,
            on_error="fail", generation=1, parent_id=parent.id if parent else None,
            root_id=parent.root_id if parent else identity, depth=parent.depth + 1 if parent else 0, created_at=at,
            started_at=at, paused_at=None, completed_at=None, error_code=None, age=timedelta(0),
            output_index=blueprint.output, result_json=None, error_json=None,
        )  # fmt: skip
        self.runs[identity] = run
        self.nodes[identity] = tuple(_node(index, step) for index, step in enumerate(blueprint.steps))
        return run

    def step(self) -> None:
        """Take over what has ended and start what is due; now and then begin a new run."""
        self._steps += 1
        if self._steps % NEW_EVERY == 0:
            self.begin(ONBOARD)
        for run in list(self.runs.values()):
            if run.status == WorkflowStatus.RUNNING:
                self.advance(run.id)

    def advance(self, identity: UUID) -> None:
        nodes = [self._taken_over(node) for node in self.nodes[identity]]
        statuses = [WorkflowTaskStatus(node.status) for node in nodes]
        for node in list(nodes):
            if node.status == WorkflowTaskStatus.PENDING:
                nodes[node.index] = self._considered(identity, node, statuses)
        self.nodes[identity] = tuple(nodes)
        ended = [WorkflowTaskStatus(node.status) for node in nodes]
        if all(status.is_terminal for status in ended):
            outcome = outcome_of(ended, None)
            code = None if outcome.error_from is None else nodes[outcome.error_from].error_code
            self.change(identity, status=outcome.status, completed_at=self._system.now(), error_code=code)

    def change(self, identity: UUID, **fields: object) -> None:
        self.runs[identity] = replace(self.runs[identity], **fields)

    def set_nodes(self, identity: UUID, change: Mapping[int, NodeRow]) -> None:
        self.nodes[identity] = tuple(change.get(node.index, node) for node in self.nodes[identity])

    def _taken_over(self, node: NodeRow) -> NodeRow:
        """The node as its task or its child stands now."""
        if WorkflowTaskStatus(node.status).is_terminal:
            return node
        if node.task_id is not None:
            task = self._system.tasks[node.task_id]
            return replace(
                node, status=_OF_TASK.get(TaskStatus(task.status), WorkflowTaskStatus.ENQUEUED),
                started_at=node.started_at or task.started_at, completed_at=task.finished_at,
                error_code=task.error_code, error_message=task.failed_reason,
            )  # fmt: skip
        if node.sub_workflow_id is not None and self.runs[node.sub_workflow_id].completed_at is not None:
            child = self.runs[node.sub_workflow_id]
            is_done = child.status == WorkflowStatus.COMPLETED
            status = WorkflowTaskStatus.COMPLETED if is_done else WorkflowTaskStatus.FAILED
            code = None if is_done else "SUBWORKFLOW_FAILED"
            return replace(node, status=status, completed_at=child.completed_at, error_code=code)
        return node

    def _considered(self, identity: UUID, node: NodeRow, statuses: Sequence[WorkflowTaskStatus]) -> NodeRow:
        """The node started or skipped where that is due."""
        state = NodeState(
            status=WorkflowTaskStatus.PENDING, dependencies=node.dependencies, join=JoinType(node.join),
            min_success=node.min_success,
        )  # fmt: skip
        match readiness(state, statuses):
            case Skipped():
                return replace(node, status=WorkflowTaskStatus.SKIPPED)
            case True if node.is_subworkflow:
                child = self.begin(BY_NAME[node.name], parent=self.runs[identity])
                now = self._system.now()
                return replace(node, status=WorkflowTaskStatus.RUNNING, sub_workflow_id=child.id, started_at=now)
            case True:
                task = self._system.send(_KINDS[node.name], workflow_id=identity)
                return replace(node, status=WorkflowTaskStatus.ENQUEUED, task_id=task.id)
            case _:
                return node

    def row(self, identity: UUID) -> WorkflowRow:
        """The run as a list shows it."""
        run, counts = self.runs[identity], Counter(node.status for node in self.nodes[identity])
        return WorkflowRow(
            **{name: getattr(run, name) for name in _HEAD}, age=self._system.now() - run.created_at,
            total=len(self.nodes[identity]), done=counts["COMPLETED"], failed=counts["FAILED"],
            skipped=counts["SKIPPED"], running=counts["RUNNING"],
        )  # fmt: skip

    def detail(self, identity: UUID) -> WorkflowDetail | None:
        if identity not in self.runs:
            return None
        children = [each.id for each in self.runs.values() if each.parent_id == identity]
        run = self.runs[identity]
        return WorkflowDetail(
            run=replace(run, age=self._system.now() - run.created_at),
            nodes=self.nodes[identity],
            children={child: self.row(child) for child in children},
        )


def _node(index: int, step: Step) -> NodeRow:
    kind = _KINDS.get(step.name)
    return NodeRow(
        index=index, node_id=f"{step.name}:{index}", name=step.name, status=WorkflowTaskStatus.PENDING, join=step.join,
        min_success=step.min_success, allow_failed_deps=False, dependencies=step.after, task_id=None,
        is_subworkflow=step.is_workflow, sub_workflow_id=None, queue=kind.queue if kind else None,
        priority=50 if kind else None, started_at=None, completed_at=None, error_code=None, error_message=None,
    )  # fmt: skip
