"""Runs of workflows in the invented system: what is due is started by the rule that real runs go by."""

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

if TYPE_CHECKING:
    from horsies_tui.demo.system import DemoSystem


# The workflows of the invented system: which steps each has, and what each waits for.


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node: a task of the catalogue, or a whole other workflow."""

    name: str
    after: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    is_workflow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorkflow:
    name: str
    nodes: tuple[DemoNode, ...]
    output: int | None = None


def _fetch(count: int) -> tuple[DemoNode, ...]:
    return tuple(DemoNode(name="scrape.page") for _ in range(count))


DIGEST: Final = DemoWorkflow(
    name="digest-run",
    nodes=(
        *_fetch(3),
        DemoNode(name="etl.load", after=(0, 1, 2)),
        DemoNode(name="etl.load", after=(0, 2), join="any"),
        DemoNode(name="mail.send", after=(3,)),
        DemoNode(name="mail.send", after=(4,)),
        DemoNode(name="etl.load", after=(0, 1, 2), join="quorum", min_success=2),
        DemoNode(name="mail.digest", after=(6, 7)),
        DemoNode(name="report.build", after=(5, 8)),
    ),
    output=9,
)

ONBOARD: Final = DemoWorkflow(
    name="onboard",
    nodes=(
        DemoNode(name="billing.charge"),
        DemoNode(name="mail.send", after=(0,)),
        DemoNode(name="etl.load", after=(0,)),
        DemoNode(name="mail.digest", after=(1, 2)),
    ),
    output=3,
)

CRAWL: Final = DemoWorkflow(
    name="crawl",
    nodes=(
        DemoNode(name="etl.load"),
        *(DemoNode(name="scrape.page", after=(0,)) for _ in range(180)),
        DemoNode(name="etl.load", after=tuple(range(1, 181)), join="quorum", min_success=150),
        DemoNode(name="mail.send", after=(181,)),
    ),
    output=182,
)

NIGHTLY: Final = DemoWorkflow(
    name="etl-night",
    nodes=(
        *(DemoNode(name="etl.load") for _ in range(6)),
        DemoNode(name="crawl", after=(0, 1), is_workflow=True),
        DemoNode(name="etl.load", after=(2, 3, 4, 5)),
        DemoNode(name="etl.load", after=(6, 7)),
        DemoNode(name="mail.digest", after=(8,)),
    ),
    output=9,
)

WORKFLOWS_BY_NAME: Final = {each.name: each for each in (DIGEST, ONBOARD, CRAWL, NIGHTLY)}


# What the invented system is made of.

STALE_AFTER: Final = {TaskStatus.CLAIMED: timedelta(minutes=2), TaskStatus.RUNNING: timedelta(minutes=5)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """Tasks of one name: how often they come, how long they take, how they fail."""

    name: str
    queue: str
    weight: int
    run_s: float
    failure_rate: float
    error_code: str
    message: str
    kwargs_json: str
    max_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorker:
    """A worker."""

    id: UUID
    hostname: str
    pid: int
    processes: int
    queues: tuple[str, ...]
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQueue:
    name: str
    priority: int
    cap: int | None


QUEUES: Final = (
    DemoQueue(name="critical", priority=1, cap=16),
    DemoQueue(name="mail", priority=10, cap=60),
    DemoQueue(name="default", priority=50, cap=None),
    DemoQueue(name="scraping", priority=60, cap=16),
    DemoQueue(name="reports", priority=90, cap=4),
)

KINDS: Final = (
    TaskKind(
        name="mail.send",
        queue="mail",
        weight=40,
        run_s=1.2,
        failure_rate=0.08,
        error_code="SMTP_TIMEOUT",
        message="TimeoutError: SMTP read timed out (30s)",
        kwargs_json='{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}',
    ),
    TaskKind(
        name="mail.digest",
        queue="mail",
        weight=6,
        run_s=2.0,
        failure_rate=0.05,
        error_code="UNHANDLED_EXCEPTION",
        message="KeyError: 'plan'   app/mail.py:88 in build_digest",
        kwargs_json='{"user_id": 88213}',
        max_retries=0,
    ),
    TaskKind(
        name="scrape.page",
        queue="scraping",
        weight=14,
        run_s=3.0,
        failure_rate=0.04,
        error_code="HTTP_503",
        message="503 Service Unavailable: list[/foo] is not markup",
        kwargs_json='{"url": "https://example.org/p/1"}',
    ),
    TaskKind(
        name="etl.load",
        queue="default",
        weight=20,
        run_s=6.0,
        failure_rate=0.01,
        error_code="DEADLOCK_DETECTED",
        message="deadlock detected",
        kwargs_json='{"table": "orders", "day": "2026-11-14"}',
    ),
    TaskKind(
        name="billing.charge",
        queue="critical",
        weight=10,
        run_s=0.6,
        failure_rate=0.01,
        error_code="CARD_DECLINED",
        message="card declined by issuer",
        kwargs_json='{"invoice": 5521, "authorization": "tok_1"}',
        max_retries=5,
    ),
    TaskKind(
        name="report.build",
        queue="reports",
        weight=2,
        run_s=20.0,
        failure_rate=0.02,
        error_code="UNHANDLED_EXCEPTION",
        message="MemoryError",
        kwargs_json='{"month": "2026-10"}',
        max_retries=1,
    ),
)


def _worker_id(number: int) -> UUID:
    return UUID(f"019a8c00-0000-7000-8000-0000{number:08x}")


WORKERS: Final = (
    DemoWorker(id=_worker_id(0xA1), hostname="host-1", pid=901, processes=12, queues=("critical", "mail", "default")),
    DemoWorker(id=_worker_id(0xA2), hostname="host-2", pid=877, processes=12, queues=("critical", "mail", "default")),
    DemoWorker(id=_worker_id(0xA4), hostname="host-2", pid=1402, processes=8, queues=("default", "scraping")),
    DemoWorker(id=_worker_id(0xA7), hostname="host-3", pid=4121, processes=8, queues=("mail", "reports"), is_lost=True),
)


STEPS_PER_NEW_RUN = 80
"""Steps of the system between two new runs."""

_KINDS = {kind.name: kind for kind in KINDS}
_NODE_STATUSES = {
    TaskStatus.RUNNING: WorkflowTaskStatus.RUNNING,
    TaskStatus.COMPLETED: WorkflowTaskStatus.COMPLETED,
    TaskStatus.FAILED: WorkflowTaskStatus.FAILED,
    TaskStatus.CANCELLED: WorkflowTaskStatus.FAILED,
    TaskStatus.EXPIRED: WorkflowTaskStatus.FAILED,
}
_SHARED_FIELDS = (
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
    """Runs by id. Their tasks are tasks of the system, and end there."""

    def __init__(self, system: DemoSystem) -> None:
        self.runs: dict[UUID, WorkflowRecord] = {}
        self.nodes: dict[UUID, tuple[NodeRow, ...]] = {}
        self._system = system
        self._numbers = count(0xF0)
        self._steps = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """How many runs are in each state."""
        return Counter(run.status for run in self.runs.values())

    def start_run(
        self, workflow: DemoWorkflow, *, at: datetime | None = None, parent: WorkflowRecord | None = None
    ) -> WorkflowRecord:
        """A run of which nothing has started."""
        at = at or self._system.now()
        identity = UUID(
            int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | next(self._numbers) * 0x9E3779B1
        )
        run = WorkflowRecord(
            id=identity,
            name=workflow.name,
            status=WorkflowStatus.RUNNING,
            definition_key=workflow.name,
            on_error="fail",
            generation=1,
            parent_id=parent.id if parent else None,
            root_id=parent.root_id if parent else identity,
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
        self.runs[identity] = run
        self.nodes[identity] = tuple(_node(index, step) for index, step in enumerate(workflow.nodes))
        return run

    def step(self) -> None:
        """Take over what has ended and start what is due; now and then begin a new run."""
        self._steps += 1
        if self._steps % STEPS_PER_NEW_RUN == 0:
            self.start_run(ONBOARD)
        for run in list(self.runs.values()):
            if run.status == WorkflowStatus.RUNNING:
                self.advance(run.id)

    def advance(self, run_id: UUID) -> None:
        nodes = [self._sync_node(node) for node in self.nodes[run_id]]
        statuses = [WorkflowTaskStatus(node.status) for node in nodes]
        for node in list(nodes):
            if node.status == WorkflowTaskStatus.PENDING:
                nodes[node.index] = self._start_or_skip(run_id, node, statuses)
        self.nodes[run_id] = tuple(nodes)
        ended = [WorkflowTaskStatus(node.status) for node in nodes]
        if all(status.is_terminal for status in ended):
            outcome = run_outcome(ended, None)
            code = None if outcome.error_node is None else nodes[outcome.error_node].error_code
            self.change(run_id, status=outcome.status, completed_at=self._system.now(), error_code=code)

    def change(self, run_id: UUID, **fields: object) -> None:
        self.runs[run_id] = replace(self.runs[run_id], **fields)

    def set_nodes(self, run_id: UUID, change: Mapping[int, NodeRow]) -> None:
        self.nodes[run_id] = tuple(change.get(node.index, node) for node in self.nodes[run_id])

    def _sync_node(self, node: NodeRow) -> NodeRow:
        """The node as its task or its child stands now."""
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
            child = self.runs[node.sub_workflow_id]
            is_done = child.status == WorkflowStatus.COMPLETED
            status = WorkflowTaskStatus.COMPLETED if is_done else WorkflowTaskStatus.FAILED
            code = None if is_done else "SUBWORKFLOW_FAILED"
            return replace(node, status=status, completed_at=child.completed_at, error_code=code)
        return node

    def _start_or_skip(self, identity: UUID, node: NodeRow, statuses: Sequence[WorkflowTaskStatus]) -> NodeRow:
        """The node started or skipped where that is due."""
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
                child = self.start_run(WORKFLOWS_BY_NAME[node.name], parent=self.runs[identity])
                now = self._system.now()
                return replace(node, status=WorkflowTaskStatus.RUNNING, sub_workflow_id=child.id, started_at=now)
            case True:
                task = self._system.send(_KINDS[node.name], workflow_id=identity)
                return replace(node, status=WorkflowTaskStatus.ENQUEUED, task_id=task.id)
            case _:
                return node

    def row(self, run_id: UUID) -> WorkflowRow:
        """The run as a list shows it."""
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
        children = [each.id for each in self.runs.values() if each.parent_id == run_id]
        run = self.runs[run_id]
        return WorkflowDetail(
            run=replace(run, age=self._system.now() - run.created_at),
            nodes=self.nodes[run_id],
            sub_workflows={child: self.row(child) for child in children},
        )


def _node(index: int, step: DemoNode) -> NodeRow:
    kind = _KINDS.get(step.name)
    return NodeRow(
        index=index,
        node_id=f"{step.name}:{index}",
        name=step.name,
        status=WorkflowTaskStatus.PENDING,
        join=step.join,
        min_success=step.min_success,
        allow_failed_deps=False,
        dependencies=step.after,
        task_id=None,
        is_subworkflow=step.is_workflow,
        sub_workflow_id=None,
        queue=kind.queue if kind else None,
        priority=50 if kind else None,
        started_at=None,
        completed_at=None,
        error_code=None,
        error_message=None,
    )


# The runs that the invented system begins with, each as far as it has come by now.

_STATUSES = {
    "D": WorkflowTaskStatus.COMPLETED,
    "F": WorkflowTaskStatus.FAILED,
    "S": WorkflowTaskStatus.SKIPPED,
    "R": WorkflowTaskStatus.RUNNING,
    "E": WorkflowTaskStatus.ENQUEUED,
    "P": WorkflowTaskStatus.PENDING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededRun:
    """A run that began so long ago; a letter for each node says where it stands."""

    blueprint: DemoWorkflow
    ago_s: float
    nodes: str
    status: WorkflowStatus = WorkflowStatus.RUNNING
    took_s: float = 0
    child: SeededRun | None = None


SEEDED_RUNS: Final = (
    SeededRun(blueprint=NIGHTLY, ago_s=93_600, nodes="DDPPPPPPPP", status=WorkflowStatus.PAUSED),
    SeededRun(blueprint=ONBOARD, ago_s=2400, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=9),
    SeededRun(blueprint=ONBOARD, ago_s=1900, nodes="DDSS", status=WorkflowStatus.CANCELLED, took_s=4),
    SeededRun(
        blueprint=NIGHTLY,
        ago_s=1320,
        nodes="DDDDDDRDPP",
        child=SeededRun(blueprint=CRAWL, ago_s=1300, nodes="D" + "D" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP"),
    ),
    SeededRun(blueprint=ONBOARD, ago_s=700, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=11),
    SeededRun(blueprint=DIGEST, ago_s=180, nodes="DFDSDSDDDS", status=WorkflowStatus.FAILED, took_s=63),
    SeededRun(blueprint=DIGEST, ago_s=95, nodes="DFRPDPDPPP"),
    SeededRun(blueprint=ONBOARD, ago_s=41, nodes="DDRP"),
    SeededRun(blueprint=ONBOARD, ago_s=9, nodes="RPPP"),
)


def seed_runs(system: DemoSystem) -> None:
    """Put them into the system."""
    for past in SEEDED_RUNS:
        _seed_run(system, past)


def _seed_run(system: DemoSystem, past: SeededRun, parent: WorkflowRecord | None = None) -> UUID:
    flows, began = system.workflow_runs, system.now() - timedelta(seconds=past.ago_s)
    run = flows.start_run(past.blueprint, at=began, parent=parent)
    child = None if past.child is None else _seed_run(system, past.child, run)
    nodes = {
        node.index: _seed_node(system, run, node, _STATUSES[letter], child)
        for node, letter in zip(flows.nodes[run.id], past.nodes, strict=True)
    }
    flows.set_nodes(run.id, nodes)
    ended = began + timedelta(seconds=past.took_s) if past.status.is_terminal else None
    paused = began + timedelta(seconds=60) if past.status is WorkflowStatus.PAUSED else None
    code = _first_error(nodes) if ended is not None else None
    flows.change(run.id, status=past.status, completed_at=ended, paused_at=paused, error_code=code)
    return run.id


def _first_error(nodes: Mapping[int, NodeRow]) -> str | None:
    return next((node.error_code for node in nodes.values() if node.error_code), None)


def _seed_node(
    system: DemoSystem, run: WorkflowRecord, node: NodeRow, status: WorkflowTaskStatus, child: UUID | None
) -> NodeRow:
    if status in {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.SKIPPED}:
        return replace(node, status=status)
    began = run.created_at + timedelta(seconds=2 * len(node.dependencies[:3]))
    if node.is_subworkflow:
        return replace(node, status=status, sub_workflow_id=child, started_at=began)
    kind = _KINDS[node.name]
    task_id = system.send(kind, at=began, workflow_id=run.id).id
    took = timedelta(seconds=kind.run_s * (0.6 + node.index % 7 / 10))
    if status is not WorkflowTaskStatus.ENQUEUED:
        _seed_node_task(system, task_id, began, status, ended=began + took)
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
    system: DemoSystem, task_id: UUID, began: datetime, status: WorkflowTaskStatus, *, ended: datetime
) -> None:
    member = WORKERS[0]
    system.move(
        task_id,
        TaskStatus.RUNNING,
        claimed_at=began,
        started_at=began,
        last_heartbeat_at=system.now(),
        claim_token=1,
        worker_id=member.id,
        worker_hostname=member.hostname,
        worker_pid=member.pid,
    )
    kind = _KINDS[system.tasks[task_id].name]
    if status is WorkflowTaskStatus.COMPLETED:
        system.move(
            task_id,
            TaskStatus.COMPLETED,
            finished_at=ended,
            last_heartbeat_at=None,
            attempt_count=1,
            result_json='{"ok": true}',
        )
    elif status is WorkflowTaskStatus.FAILED:
        system.move(
            task_id,
            TaskStatus.FAILED,
            finished_at=ended,
            last_heartbeat_at=None,
            attempt_count=1,
            error_code=kind.error_code,
            failed_reason=kind.message,
        )
