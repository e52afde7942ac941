"""Runs of workflows in the invented system: what is due is started by the rule that real runs go by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import JoinType, WorkflowStatus, WorkflowTaskStatus
from horsies.model.workflow.progress import NodeState, Skipped, outcome_of, readiness
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowFacts, WorkflowRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from horsies_tui.demo.system import System


# The workflows of the invented system: which steps each has, and what each waits for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node: a task of the catalogue, or a whole other workflow."""

    name: str
    after: tuple[int, ...] = ()
    join: str = "all"
    min_success: int | None = None
    is_workflow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    name: str
    steps: tuple[Step, ...]
    output: int | None = None


def _fetch(count: int) -> tuple[Step, ...]:
    return tuple(Step(name="scrape.page") for _ in range(count))


DIGEST: Final = Blueprint(
    name="digest-run",
    steps=(
        *_fetch(3),
        Step(name="etl.load", after=(0, 1, 2)),
        Step(name="etl.load", after=(0, 2), join="any"),
        Step(name="mail.send", after=(3,)),
        Step(name="mail.send", after=(4,)),
        Step(name="etl.load", after=(0, 1, 2), join="quorum", min_success=2),
        Step(name="mail.digest", after=(6, 7)),
        Step(name="report.build", after=(5, 8)),
    ),
    output=9,
)

ONBOARD: Final = Blueprint(
    name="onboard",
    steps=(
        Step(name="billing.charge"),
        Step(name="mail.send", after=(0,)),
        Step(name="etl.load", after=(0,)),
        Step(name="mail.digest", after=(1, 2)),
    ),
    output=3,
)

CRAWL: Final = Blueprint(
    name="crawl",
    steps=(
        Step(name="etl.load"),
        *(Step(name="scrape.page", after=(0,)) for _ in range(180)),
        Step(name="etl.load", after=tuple(range(1, 181)), join="quorum", min_success=150),
        Step(name="mail.send", after=(181,)),
    ),
    output=182,
)

NIGHTLY: Final = Blueprint(
    name="etl-night",
    steps=(
        *(Step(name="etl.load") for _ in range(6)),
        Step(name="crawl", after=(0, 1), is_workflow=True),
        Step(name="etl.load", after=(2, 3, 4, 5)),
        Step(name="etl.load", after=(6, 7)),
        Step(name="mail.digest", after=(8,)),
    ),
    output=9,
)

BY_NAME: Final = {each.name: each for each in (DIGEST, ONBOARD, CRAWL, NIGHTLY)}


# What the invented system is made of.

STALE_AFTER: Final = {TaskStatus.CLAIMED: timedelta(minutes=2), TaskStatus.RUNNING: timedelta(minutes=5)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Tasks of one name: how often they come, how long they take, how they fail."""

    name: str
    queue: str
    share: int
    run_s: float
    failures: float
    error: str
    message: str
    kwargs_json: str
    max_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker."""

    id: UUID
    hostname: str
    pid: int
    processes: int
    queues: tuple[str, ...]
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    name: str
    priority: int
    cap: int | None


QUEUES: Final = (
    Queue(name="critical", priority=1, cap=16),
    Queue(name="mail", priority=10, cap=60),
    Queue(name="default", priority=50, cap=None),
    Queue(name="scraping", priority=60, cap=16),
    Queue(name="reports", priority=90, cap=4),
)

KINDS: Final = (
    Kind(
        name="mail.send", queue="mail", share=40, run_s=1.2, failures=0.08, error="SMTP_TIMEOUT",
        message="TimeoutError: SMTP read timed out (30s)",
        kwargs_json='{"to": "ada@example.org", "template": "welcome", "api_token": "s3cret"}',
    ),
    Kind(
        name="mail.digest", queue="mail", share=6, run_s=2.0, failures=0.05, error="UNHANDLED_EXCEPTION",
        message="KeyError: 'plan'   app/mail.py:88 in build_digest", kwargs_json='{"user_id": 88213}', max_retries=0,
    ),
    Kind(
        name="scrape.page", queue="scraping", share=14, run_s=3.0, failures=0.04, error="HTTP_503",
        message="503 Service Unavailable: list[/foo] is not markup", kwargs_json='{"url": "https://example.org/p/1"}',
    ),
    Kind(
        name="etl.load", queue="default", share=20, run_s=6.0, failures=0.01, error="DEADLOCK_DETECTED",
        message="deadlock detected", kwargs_json='{"table": "orders", "day": "2026-11-14"}',
    ),
    Kind(
        name="billing.charge", queue="critical", share=10, run_s=0.6, failures=0.01, error="CARD_DECLINED",
        message="card declined by issuer", kwargs_json='{"invoice": 5521, "authorization": "tok_1"}', max_retries=5,
    ),
    Kind(
        name="report.build", queue="reports", share=2, run_s=20.0, failures=0.02, error="UNHANDLED_EXCEPTION",
        message="MemoryError", kwargs_json='{"month": "2026-10"}', max_retries=1,
    ),
)  # fmt: skip


def _worker(number: int) -> UUID:
    return UUID(f"019a8c00-0000-7000-8000-0000{number:08x}")


WORKERS: Final = (
    Member(id=_worker(0xA1), hostname="host-1", pid=901, processes=12, queues=("critical", "mail", "default")),
    Member(id=_worker(0xA2), hostname="host-2", pid=877, processes=12, queues=("critical", "mail", "default")),
    Member(id=_worker(0xA4), hostname="host-2", pid=1402, processes=8, queues=("default", "scraping")),
    Member(id=_worker(0xA7), hostname="host-3", pid=4121, processes=8, queues=("mail", "reports"), is_gone=True),
)


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
class Past:
    """A run that began so long ago; a letter for each node says where it stands."""

    blueprint: Blueprint
    ago_s: float
    nodes: str
    status: WorkflowStatus = WorkflowStatus.RUNNING
    took_s: float = 0
    child: Past | None = None


PASTS: Final = (
    Past(blueprint=NIGHTLY, ago_s=93_600, nodes="DDPPPPPPPP", status=WorkflowStatus.PAUSED),
    Past(blueprint=ONBOARD, ago_s=2400, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=9),
    Past(blueprint=ONBOARD, ago_s=1900, nodes="DDSS", status=WorkflowStatus.CANCELLED, took_s=4),
    Past(
        blueprint=NIGHTLY,
        ago_s=1320,
        nodes="DDDDDDRDPP",
        child=Past(blueprint=CRAWL, ago_s=1300, nodes="D" + "D" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP"),
    ),
    Past(blueprint=ONBOARD, ago_s=700, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=11),
    Past(blueprint=DIGEST, ago_s=180, nodes="DFDSDSDDDS", status=WorkflowStatus.FAILED, took_s=63),
    Past(blueprint=DIGEST, ago_s=95, nodes="DFRPDPDPPP"),
    Past(blueprint=ONBOARD, ago_s=41, nodes="DDRP"),
    Past(blueprint=ONBOARD, ago_s=9, nodes="RPPP"),
)


def remember(system: System) -> None:
    """Put them into the system."""
    for past in PASTS:
        _remember(system, past)


def _remember(system: System, past: Past, parent: WorkflowFacts | None = None) -> UUID:
    flows, began = system.flows, system.now() - timedelta(seconds=past.ago_s)
    run = flows.begin(past.blueprint, at=began, parent=parent)
    child = None if past.child is None else _remember(system, past.child, run)
    nodes = {
        node.index: _as_of_now(system, run, node, _STATUSES[letter], child)
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


def _as_of_now(
    system: System, run: WorkflowFacts, node: NodeRow, status: WorkflowTaskStatus, child: UUID | None
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
        _run(system, task_id, began, status, ended=began + took)
    task = system.tasks[task_id]
    return replace(
        node, status=status, task_id=task_id, started_at=task.started_at, completed_at=task.finished_at,
        error_code=task.error_code, error_message=task.failed_reason,
    )  # fmt: skip


def _run(system: System, task_id: UUID, began: datetime, status: WorkflowTaskStatus, *, ended: datetime) -> None:
    member = WORKERS[0]
    system.move(
        task_id, TaskStatus.RUNNING, claimed_at=began, started_at=began, last_beat_at=system.now(), claim_token=1,
        worker_id=member.id, worker_hostname=member.hostname, worker_pid=member.pid,
    )  # fmt: skip
    kind = _KINDS[system.tasks[task_id].name]
    if status is WorkflowTaskStatus.COMPLETED:
        system.move(
            task_id, TaskStatus.COMPLETED, finished_at=ended, last_beat_at=None, attempt_count=1,
            result_json='{"ok": true}',
        )  # fmt: skip
    elif status is WorkflowTaskStatus.FAILED:
        system.move(
            task_id, TaskStatus.FAILED, finished_at=ended, last_beat_at=None, attempt_count=1, error_code=kind.error,
            failed_reason=kind.message,
        )  # fmt: skip
