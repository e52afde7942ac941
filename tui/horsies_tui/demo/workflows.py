"""Workflow runs of the demo system, advanced by the same readiness rules as real runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import JoinType, WorkflowStatus, WorkflowTaskStatus
from horsies.model.workflow.progress import NeverReady, NodeState, readiness, run_outcome
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowRecord, WorkflowRow
from horsies_tui.demo.catalog import (
    CRAWL,
    DIGEST,
    KINDS_BY_NAME,
    NIGHTLY,
    ONBOARD,
    WORKERS,
    WORKFLOWS_BY_NAME,
    DemoNode,
    DemoWorkflow,
)

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem

STEPS_PER_NEW_RUN: Final = 80
"""Steps of the system between two new runs."""

_NODE_STATUSES: Final = {
    TaskStatus.RUNNING: WorkflowTaskStatus.RUNNING,
    TaskStatus.COMPLETED: WorkflowTaskStatus.COMPLETED,
    TaskStatus.FAILED: WorkflowTaskStatus.FAILED,
    TaskStatus.CANCELLED: WorkflowTaskStatus.FAILED,
    TaskStatus.EXPIRED: WorkflowTaskStatus.FAILED,
}
_SHARED_FIELDS: Final = (
    "id",
    "name",
    "status",
    "definition_key",
    "on_error",
    "generation",
    "parent_id",
    "root_id",
    "depth",
    "created_at",
    "started_at",
    "paused_at",
    "completed_at",
    "error_code",
)


class DemoRuns:
    """Runs by id. Their tasks are sent to the demo system and run there."""

    def __init__(self, system: DemoSystem) -> None:
        self.runs: dict[UUID, WorkflowRecord] = {}
        self.nodes: dict[UUID, tuple[NodeRow, ...]] = {}
        self._system = system
        self._numbers = count(0xF0)
        self._steps = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of runs by status."""
        return Counter(run.status for run in self.runs.values())

    def start_run(
        self, workflow: DemoWorkflow, *, at: datetime | None = None, parent: WorkflowRecord | None = None
    ) -> WorkflowRecord:
        """Create a run whose nodes have not started."""
        at = at or self._system.now()
        # A UUIDv7; the multiplier spreads the serial numbers, so that short ids look random.
        run_id = UUID(int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | next(self._numbers) * 0x9E3779B1)
        run = WorkflowRecord(
            id=run_id,
            name=workflow.name,
            status=WorkflowStatus.RUNNING,
            definition_key=workflow.name,
            on_error="fail",
            generation=1,
            parent_id=parent.id if parent else None,
            root_id=parent.root_id if parent else run_id,
            depth=parent.depth + 1 if parent else 0,
            created_at=at,
            started_at=at,
            paused_at=None,
            completed_at=None,
            error_code=None,
            age=timedelta(0),
            output_index=workflow.output,
            result_json=None,
            error_json=None,
        )
        self.runs[run_id] = run
        self.nodes[run_id] = tuple(_pending_node(index, node) for index, node in enumerate(workflow.nodes))
        return run

    def step(self) -> None:
        """Advance all running runs; from time to time start a new one."""
        self._steps += 1
        if self._steps % STEPS_PER_NEW_RUN == 0:
            self.start_run(ONBOARD)
        for run in list(self.runs.values()):
            if run.status == WorkflowStatus.RUNNING:
                self.advance(run.id)

    def advance(self, run_id: UUID) -> None:
        """Take over the states of tasks and sub-workflow runs, start ready nodes, finish the run."""
        nodes = [self._sync_node(node) for node in self.nodes[run_id]]
        statuses = [WorkflowTaskStatus(node.status) for node in nodes]
        for node in list(nodes):
            if node.status == WorkflowTaskStatus.PENDING:
                nodes[node.index] = self._start_or_skip(run_id, node, statuses)
        self.nodes[run_id] = tuple(nodes)
        new_statuses = [WorkflowTaskStatus(node.status) for node in nodes]
        if all(status.is_terminal for status in new_statuses):
            outcome = run_outcome(new_statuses, None)
            code = None if outcome.error_node is None else nodes[outcome.error_node].error_code
            self.change(run_id, status=outcome.status, completed_at=self._system.now(), error_code=code)

    def change(self, run_id: UUID, **fields: object) -> None:
        self.runs[run_id] = replace(self.runs[run_id], **fields)

    def set_nodes(self, run_id: UUID, changed: Mapping[int, NodeRow]) -> None:
        self.nodes[run_id] = tuple(changed.get(node.index, node) for node in self.nodes[run_id])

    def _sync_node(self, node: NodeRow) -> NodeRow:
        """The node with the current state of its task or sub-workflow run."""
        if WorkflowTaskStatus(node.status).is_terminal:
            return node
        if node.task_id is not None:
            task = self._system.tasks[node.task_id]
            return replace(
                node,
                status=_NODE_STATUSES.get(TaskStatus(task.status), WorkflowTaskStatus.ENQUEUED),
                started_at=node.started_at or task.started_at,
                completed_at=task.finished_at,
                error_code=task.error_code,
                error_message=task.failed_reason,
            )
        if node.sub_workflow_id is not None and self.runs[node.sub_workflow_id].completed_at is not None:
            sub_run = self.runs[node.sub_workflow_id]
            is_completed = sub_run.status == WorkflowStatus.COMPLETED
            status = WorkflowTaskStatus.COMPLETED if is_completed else WorkflowTaskStatus.FAILED
            code = None if is_completed else "SUBWORKFLOW_FAILED"
            return replace(node, status=status, completed_at=sub_run.completed_at, error_code=code)
        return node

    def _start_or_skip(self, run_id: UUID, node: NodeRow, statuses: Sequence[WorkflowTaskStatus]) -> NodeRow:
        """The node after starting or skipping it, if its dependencies allow that."""
        state = NodeState(
            status=WorkflowTaskStatus.PENDING,
            dependencies=node.dependencies,
            join=JoinType(node.join),
            min_success=node.min_success,
        )
        match readiness(state, statuses):
            case NeverReady():
                return replace(node, status=WorkflowTaskStatus.SKIPPED)
            case True if node.is_subworkflow:
                sub_run = self.start_run(WORKFLOWS_BY_NAME[node.name], parent=self.runs[run_id])
                now = self._system.now()
                return replace(node, status=WorkflowTaskStatus.RUNNING, sub_workflow_id=sub_run.id, started_at=now)
            case True:
                task = self._system.send(KINDS_BY_NAME[node.name], workflow_id=run_id)
                return replace(node, status=WorkflowTaskStatus.ENQUEUED, task_id=task.id)
            case _:
                return node

    def row(self, run_id: UUID) -> WorkflowRow:
        """The run as a row of the list."""
        run, counts = self.runs[run_id], Counter(node.status for node in self.nodes[run_id])
        return WorkflowRow(
            **{name: getattr(run, name) for name in _SHARED_FIELDS},
            age=self._system.now() - run.created_at,
            total=len(self.nodes[run_id]),
            done=counts["COMPLETED"],
            failed=counts["FAILED"],
            skipped=counts["SKIPPED"],
            running=counts["RUNNING"],
        )

    def detail(self, run_id: UUID) -> WorkflowDetail | None:
        if run_id not in self.runs:
            return None
        run = self.runs[run_id]
        sub_run_ids = [other.id for other in self.runs.values() if other.parent_id == run_id]
        return WorkflowDetail(
            run=replace(run, age=self._system.now() - run.created_at),
            nodes=self.nodes[run_id],
            sub_workflows={sub_run_id: self.row(sub_run_id) for sub_run_id in sub_run_ids},
        )


def _pending_node(index: int, node: DemoNode) -> NodeRow:
    kind = KINDS_BY_NAME.get(node.name)
    return NodeRow(
        index=index,
        node_id=f"{node.name}:{index}",
        name=node.name,
        status=WorkflowTaskStatus.PENDING,
        join=node.join,
        min_success=node.min_success,
        allow_failed_deps=False,
        dependencies=node.after,
        task_id=None,
        is_subworkflow=node.is_workflow,
        sub_workflow_id=None,
        queue=kind.queue if kind else None,
        priority=50 if kind else None,
        started_at=None,
        completed_at=None,
        error_code=None,
        error_message=None,
    )


# Runs that exist when the demo starts

_STATUS_LETTERS: Final = {
    "D": WorkflowTaskStatus.COMPLETED,
    "F": WorkflowTaskStatus.FAILED,
    "S": WorkflowTaskStatus.SKIPPED,
    "R": WorkflowTaskStatus.RUNNING,
    "E": WorkflowTaskStatus.ENQUEUED,
    "P": WorkflowTaskStatus.PENDING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRun:
    """A run started `ago_s` ago; `nodes` has one status letter per node."""

    workflow: DemoWorkflow
    ago_s: float
    nodes: str
    status: WorkflowStatus = WorkflowStatus.RUNNING
    took_s: float = 0
    sub_run: SeededRun | None = None


SEEDED_RUNS: Final = (
    SeededRun(workflow=NIGHTLY, ago_s=93_600, nodes="DDPPPPPPPP", status=WorkflowStatus.PAUSED),
    SeededRun(workflow=ONBOARD, ago_s=2400, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=9),
    SeededRun(workflow=ONBOARD, ago_s=1900, nodes="DDSS", status=WorkflowStatus.CANCELLED, took_s=4),
    SeededRun(
        workflow=NIGHTLY,
        ago_s=1320,
        nodes="DDDDDDRDPP",
        sub_run=SeededRun(workflow=CRAWL, ago_s=1300, nodes="D" + "D" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP"),
    ),
    SeededRun(workflow=ONBOARD, ago_s=700, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=11),
    SeededRun(workflow=DIGEST, ago_s=180, nodes="DFDSDSDDDS", status=WorkflowStatus.FAILED, took_s=63),
    SeededRun(workflow=DIGEST, ago_s=95, nodes="DFRPDPDPPP"),
    SeededRun(workflow=ONBOARD, ago_s=41, nodes="DDRP"),
    SeededRun(workflow=ONBOARD, ago_s=9, nodes="RPPP"),
)


def seed_runs(system: DemoSystem) -> None:
    """Add the seeded runs, their nodes and their tasks to the system."""
    for seeded in SEEDED_RUNS:
        _seed_run(system, seeded)


def _seed_run(system: DemoSystem, seeded: SeededRun, parent: WorkflowRecord | None = None) -> UUID:
    runs, started_at = system.workflow_runs, system.now() - timedelta(seconds=seeded.ago_s)
    run = runs.start_run(seeded.workflow, at=started_at, parent=parent)
    sub_run_id = None if seeded.sub_run is None else _seed_run(system, seeded.sub_run, run)
    nodes = {
        node.index: _seed_node(system, run, node, _STATUS_LETTERS[letter], sub_run_id)
        for node, letter in zip(runs.nodes[run.id], seeded.nodes, strict=True)
    }
    runs.set_nodes(run.id, nodes)
    is_terminal = seeded.status.is_terminal
    first_error = next((node.error_code for node in nodes.values() if node.error_code), None)
    runs.change(
        run.id,
        status=seeded.status,
        completed_at=started_at + timedelta(seconds=seeded.took_s) if is_terminal else None,
        paused_at=started_at + timedelta(seconds=60) if seeded.status is WorkflowStatus.PAUSED else None,
        error_code=first_error if is_terminal else None,
    )
    return run.id


def _seed_node(
    system: DemoSystem, run: WorkflowRecord, node: NodeRow, status: WorkflowTaskStatus, sub_run_id: UUID | None
) -> NodeRow:
    if status in {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.SKIPPED}:
        return replace(node, status=status)
    started_at = run.created_at + timedelta(seconds=2 * len(node.dependencies[:3]))
    if node.is_subworkflow:
        return replace(node, status=status, sub_workflow_id=sub_run_id, started_at=started_at)
    kind = KINDS_BY_NAME[node.name]
    task_id = system.send(kind, at=started_at, workflow_id=run.id).id
    took = timedelta(seconds=kind.run_s * (0.6 + node.index % 7 / 10))
    if status is not WorkflowTaskStatus.ENQUEUED:
        _seed_node_task(system, task_id, status, started_at=started_at, finished_at=started_at + took)
    task = system.tasks[task_id]
    return replace(
        node,
        status=status,
        task_id=task_id,
        started_at=task.started_at,
        completed_at=task.finished_at,
        error_code=task.error_code,
        error_message=task.failed_reason,
    )


def _seed_node_task(
    system: DemoSystem, task_id: UUID, status: WorkflowTaskStatus, *, started_at: datetime, finished_at: datetime
) -> None:
    worker = WORKERS[0]
    system.move(
        task_id,
        TaskStatus.RUNNING,
        claimed_at=started_at,
        started_at=started_at,
        last_heartbeat_at=system.now(),
        claim_token=1,
        worker_id=worker.id,
        worker_hostname=worker.hostname,
        worker_pid=worker.pid,
    )
    kind = KINDS_BY_NAME[system.tasks[task_id].name]
    if status is WorkflowTaskStatus.COMPLETED:
        system.move(
            task_id,
            TaskStatus.COMPLETED,
            finished_at=finished_at,
            last_heartbeat_at=None,
            attempt_count=1,
            result_json='{"ok": true}',
        )
    elif status is WorkflowTaskStatus.FAILED:
        system.move(
            task_id,
            TaskStatus.FAILED,
            finished_at=finished_at,
            last_heartbeat_at=None,
            attempt_count=1,
            error_code=kind.error_code,
            failed_reason=kind.message,
        )
