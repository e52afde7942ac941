"""The fake system: tasks and workflow runs in memory, how they change as time passes, and their first state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from horsies.model.events import EventKind
from horsies.model.task import TaskAttemptInfo, TaskAttemptOutcome, TaskStatus
from horsies.model.workflow.plan import JoinType, WorkflowStatus, WorkflowTaskStatus
from horsies.model.workflow.progress import Enqueue, FinishRun, NodeState, RunState, Skip, StartSubWorkflow, next_steps
from horsies_ops.reads.changes import Change, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.tasks import TaskRecord
from horsies_ops.reads.workers import WorkerRow
from horsies_ops.reads.workflows import NodeRow, WorkflowRecord
from tests.support.fake_system import catalog
from tests.support.fake_system.catalog import HEALTHY_WORKERS, KINDS_BY_NAME, LOST_WORKER, WORKERS, TaskKind, make_row

STEP_S: Final = 0.25
"""The time that one step simulates."""
STEPS_PER_NEW_RUN: Final = 80
MAX_STARTS_PER_STEP: Final = 8
RETRY_DELAY: Final = timedelta(seconds=60)
FIRST_AUDIT_ID: Final = 5521
IN_FLIGHT: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

_NODE_STATUSES: Final[Mapping[str, WorkflowTaskStatus]] = {
    "PENDING": WorkflowTaskStatus.ENQUEUED,
    "CLAIMED": WorkflowTaskStatus.ENQUEUED,
    "RUNNING": WorkflowTaskStatus.RUNNING,
    "PAUSED": WorkflowTaskStatus.RUNNING,
    "COMPLETED": WorkflowTaskStatus.COMPLETED,
}
"""The status of a node by that of its task or sub-workflow; FAILED for all others."""


class FakeSystem:
    """Rows by id and how they change. Time comes from `now`; the same clock gives the same system."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.now = now
        self.started_at = now()
        self.tasks: dict[UUID, TaskRecord] = {}
        self.attempts: dict[UUID, list[TaskAttemptInfo]] = {}
        """By task, oldest first."""
        self.runs: dict[UUID, WorkflowRecord] = {}
        self.nodes: dict[UUID, tuple[NodeRow, ...]] = {}
        """By run, in index order."""
        self.events: list[EventRow] = []
        self.audit_log: list[AuditRow] = []
        self.paused_queues: dict[str, AuditRow] = {}
        self.paused_schedules: dict[str, AuditRow] = {}
        self.schedulers = len(WORKERS) - 1
        """The audit entry of the pause, by queue."""
        self.expired_rows = dict(catalog.EXPIRED_ROWS)
        self._silent_ids: set[UUID] = set()
        """Tasks that neither finish nor send heartbeats."""
        self._changes: list[Change] = []
        self._steps = 0
        self._random = Random(7)  # noqa: S311  # test data

    @classmethod
    def with_history(cls, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, size: int = 2000) -> FakeSystem:
        """A system with an hour of history: `size` finished tasks, silent ones, workflow runs and events."""
        system = cls(now)
        system._seed_tasks(size)
        for _ in range(40):
            system.step()
        for name, ago_s, letters, status in catalog.SEEDED_RUNS:
            system._seed_run(name, ago_s, letters, status)
        system._seed_logs()
        # The feed must not report the history as new changes.
        system.take_changes()
        return system

    @property
    def task_ids(self) -> list[UUID]:
        """In the order of sending."""
        return sorted(self.tasks)

    def in_state(self, *statuses: TaskStatus) -> list[TaskRecord]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def step(self) -> None:
        """Simulate a quarter of a second: send, finish and start tasks, write heartbeats, advance runs."""
        self._steps += 1
        now, random = self.now(), self._random
        for _ in range(random.randint(0, 3)):
            delay_s = random.randint(60, 5400) if random.random() < 0.03 else 0
            self.send(self._random_kind(), enqueued_at=now + timedelta(seconds=delay_s))
        for task in self.in_state(*IN_FLIGHT):
            if task.id in self._silent_ids:
                continue
            if random.random() < STEP_S / KINDS_BY_NAME[task.name].run_s:
                self.finish(task.id, self._random_outcome(task), now)
            else:
                self.tasks[task.id] = replace(task, last_heartbeat_at=now)
        pending = self.in_state(TaskStatus.PENDING)
        due = [task for task in pending if task.enqueued_at <= now and task.queue not in self.paused_queues]
        for task in sorted(due, key=lambda task: (task.priority, task.id))[:MAX_STARTS_PER_STEP]:
            if serving := [worker for worker in HEALTHY_WORKERS if task.queue in worker.queues]:
                self.start(task.id, random.choice(serving), now)
        if self._steps % STEPS_PER_NEW_RUN == 0:
            self.start_run("onboard")
        for run in list(self.runs.values()):
            if run.status == WorkflowStatus.RUNNING:
                self.advance_run(run)

    def take_changes(self) -> list[Change]:
        """The changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    # Tasks

    def send(self, kind: TaskKind, *, at: datetime | None = None, **fields: object) -> TaskRecord:
        """Add a pending task; `fields` replace its values."""
        sent_at = at or self.now()
        values: dict[str, Any] = {
            "id": self._new_id(sent_at),
            "status": TaskStatus.PENDING,
            "priority": catalog.PRIORITIES[kind.queue],
            "sent_at": sent_at,
            "enqueued_at": sent_at,
            "flags_json": catalog.FLAGS.get(kind.name, "{}"),
            "args_json": "[]",
            "options_json": catalog.RETRY_OPTIONS if kind.max_retries > 1 else "{}",
        }
        task = make_row(TaskRecord, kind, **(values | fields))
        self.tasks[task.id] = task
        return task

    def move(self, task_id: UUID, status: TaskStatus, **fields: object) -> TaskRecord:
        """Change the status of a task and report the change."""
        task = self.tasks[task_id]
        known: dict[str, Any] = {"topic": Topic.STATUS_CHANGE, "kind": "moved", "at": self.now(), "ids": (task_id,)}
        self._changes.append(Change(**known, queue=task.queue, from_status=task.status, to_status=status))
        self._silent_ids.discard(task_id)
        self.tasks[task_id] = replace(task, **{"status": status, **fields})
        return self.tasks[task_id]

    def start(self, task_id: UUID, worker: WorkerRow, at: datetime, **fields: object) -> TaskRecord:
        """Let the worker claim and start the task; `fields` replace the new values."""
        values = {
            "status": TaskStatus.RUNNING,
            "claimed_at": at,
            "started_at": at,
            "last_heartbeat_at": at,
            "claim_token": self.tasks[task_id].claim_token + 1,
            "worker_id": worker.worker_id,
            "worker_hostname": worker.hostname,
            "worker_pid": worker.pid,
        }
        return self.move(task_id, **(values | fields))  # pyright: ignore[reportArgumentType]

    def finish(self, task_id: UUID, status: TaskStatus, at: datetime) -> TaskRecord:
        """End the attempt with a result, an error or, if the status is PENDING, a retry."""
        task = self.tasks[task_id]
        error_code, message = (None, None) if status is TaskStatus.COMPLETED else KINDS_BY_NAME[task.name].error
        attempt = make_row(
            TaskAttemptInfo,
            task,
            task_id=str(task_id),
            attempt=task.attempt_count + 1,
            outcome=TaskAttemptOutcome.FAILED if error_code else TaskAttemptOutcome.COMPLETED,
            will_retry=status is TaskStatus.PENDING,
            finished_at=at,
            error_code=error_code,
            error_message=message,
            worker_id=str(task.worker_id),
        )
        self.attempts.setdefault(task_id, []).append(attempt)
        if attempt.will_retry:
            due_at = at + RETRY_DELAY
            fields = {"enqueued_at": due_at, "next_retry_at": due_at, "retry_count": task.retry_count + 1}
        else:
            fields = {"finished_at": at, "error_code": error_code, "failed_reason": message}
            fields["result_json"] = None if error_code else '{"ok": true}'
        return self.move(task_id, status, last_heartbeat_at=None, attempt_count=attempt.attempt, **fields)

    def _random_kind(self) -> TaskKind:
        return self._random.choices(catalog.KINDS, weights=[kind.weight for kind in catalog.KINDS])[0]

    def _random_outcome(self, task: TaskRecord) -> TaskStatus:
        if self._random.random() >= KINDS_BY_NAME[task.name].failure_rate:
            return TaskStatus.COMPLETED
        is_retried = task.attempt_count < task.max_retries and self._random.random() < 0.5
        return TaskStatus.PENDING if is_retried else TaskStatus.FAILED

    def _new_id(self, at: datetime) -> UUID:
        """A UUIDv7: milliseconds since the epoch, version, random bits, variant, random bits."""
        high, low = self._random.getrandbits(12), self._random.getrandbits(62)
        return UUID(int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)

    # Workflow runs

    def start_run(
        self, name: str, *, at: datetime | None = None, parent: WorkflowRecord | None = None
    ) -> WorkflowRecord:
        """Add a run of the workflow whose nodes have not started."""
        started_at, nodes = at or self.now(), catalog.WORKFLOWS[name]
        run_id = self._new_id(started_at)
        self.nodes[run_id] = tuple(
            replace(node, index=index, node_id=f"{node.name}:{index}") for index, node in enumerate(nodes)
        )
        self.runs[run_id] = make_row(
            WorkflowRecord,
            id=run_id,
            name=name,
            status=WorkflowStatus.RUNNING,
            definition_key=name,
            on_error="fail",
            generation=1,
            parent_id=parent and parent.id,
            root_id=parent.root_id if parent else run_id,
            depth=parent.depth + 1 if parent else 0,
            created_at=started_at,
            started_at=started_at,
            output_index=len(nodes) - 1,
        )
        return self.runs[run_id]

    def advance_run(self, run: WorkflowRecord) -> None:
        """Update the nodes from their tasks and sub-workflows, then apply the steps that a worker would apply."""
        nodes = [self._updated_node(node) for node in self.nodes[run.id]]
        states = [_node_state(node) for node in nodes]
        for step in next_steps(RunState(status=WorkflowStatus(run.status), nodes=dict(enumerate(states)))):
            match step:
                case Enqueue(index):
                    task = self.send(KINDS_BY_NAME[nodes[index].name], workflow_id=run.id)
                    nodes[index] = self._updated_node(replace(nodes[index], task_id=task.id))
                case StartSubWorkflow(index):
                    sub_run = self.start_run(nodes[index].name, parent=run)
                    nodes[index] = self._updated_node(replace(nodes[index], sub_workflow_id=sub_run.id))
                case Skip(index):
                    nodes[index] = replace(nodes[index], status=WorkflowTaskStatus.SKIPPED)
                case FinishRun(outcome):
                    code = None if outcome.error_node is None else nodes[outcome.error_node].error_code
                    finished = replace(run, status=outcome.status, completed_at=self.now(), error_code=code)
                    self.runs[run.id] = finished
                case _:
                    pass  # `_updated_node` has applied finished tasks already, and no failure pauses a run
        self.nodes[run.id] = tuple(nodes)

    def _updated_node(self, node: NodeRow) -> NodeRow:
        """The node in the state of its task or sub-workflow."""
        if node.task_id is not None:
            backing = self.tasks[node.task_id]
            node = replace(node, completed_at=backing.finished_at, error_message=backing.failed_reason)
        elif node.sub_workflow_id is not None:
            backing = self.runs[node.sub_workflow_id]
            node = replace(node, completed_at=backing.completed_at)
        else:
            return node
        status = _NODE_STATUSES.get(backing.status, WorkflowTaskStatus.FAILED)
        return replace(node, status=status, started_at=backing.started_at, error_code=backing.error_code)

    # Events and audit log

    def record_event(self, kind: EventKind, evidence: Mapping[str, object], *, ago_s: float = 0, **ids: UUID) -> None:
        at, number = self.now() - timedelta(seconds=ago_s), len(self.events) + 1
        self.events.append(make_row(EventRow, id=number, at=at, kind=kind, evidence_json=json.dumps(evidence), **ids))

    def record_action(
        self, action: str, selector: Mapping[str, object], *, affected: int, ago_s: float = 0, **fields: object
    ) -> AuditRow:
        """Add an audit entry; `fields` replace its values."""
        values: dict[str, object] = {
            "id": FIRST_AUDIT_ID + len(self.audit_log),
            "at": self.now() - timedelta(seconds=ago_s),
            "actor": "you",
            "host": "demo",
            "action": action,
            "filter_json": json.dumps(selector) if selector else None,
            "matched": affected,
            "affected": affected,
            "via": "tui",
            "task_ids": (),
        }
        self.audit_log.append(make_row(AuditRow, **(values | fields)))
        return self.audit_log[-1]

    # The state at the start

    def _seed_tasks(self, size: int) -> None:
        """Add tasks that finished in the last hour, a cancelled and an expired one, and the silent ones."""
        now = self.now()
        for number in range(size, 0, -1):
            kind, sent_at = self._random_kind(), now - timedelta(seconds=3600 * number / size + 30)
            started_at = sent_at + timedelta(seconds=self._random.random() * 4)
            task = self.start(self.send(kind, at=sent_at).id, self._random.choice(HEALTHY_WORKERS), started_at)
            took = timedelta(seconds=kind.run_s * (0.5 + self._random.random()))
            self.finish(task.id, self._random_outcome(task), started_at + took)
        for status in (TaskStatus.CANCELLED, TaskStatus.EXPIRED):
            task = self.send(KINDS_BY_NAME["etl.load"], at=now - timedelta(minutes=1))
            self.move(task.id, status, finished_at=now, error_code=f"TASK_{status}")
        for name, status, silence_s, worker in catalog.SILENT_TASKS:
            silent_since = now - timedelta(seconds=silence_s)
            task = self.send(KINDS_BY_NAME[name], at=silent_since - timedelta(minutes=14))
            if status is TaskStatus.CLAIMED:
                self.start(task.id, worker, silent_since, status=status, started_at=None)
            else:
                self.start(task.id, WORKERS[0], task.sent_at)
                self.finish(task.id, TaskStatus.PENDING, task.sent_at + timedelta(minutes=2))
                self.start(task.id, worker, silent_since - timedelta(minutes=8), last_heartbeat_at=silent_since)
            self._silent_ids.add(task.id)

    def _seed_run(
        self, name: str, ago_s: float, letters: str, status: WorkflowStatus, parent: WorkflowRecord | None = None
    ) -> UUID:
        run = self.start_run(name, at=self.now() - timedelta(seconds=ago_s), parent=parent)
        pairs = zip(self.nodes[run.id], letters, strict=True)
        nodes = self.nodes[run.id] = tuple(self._seeded_node(run, node, letter) for node, letter in pairs)
        if status.is_terminal:
            code = next((node.error_code for node in nodes if node.error_code), None)
            completed_at = max((node.completed_at for node in nodes if node.completed_at), default=run.created_at)
            self.runs[run.id] = replace(run, status=status, completed_at=completed_at, error_code=code)
        elif status is WorkflowStatus.PAUSED:
            self.runs[run.id] = replace(run, status=status, paused_at=run.created_at + timedelta(minutes=1))
        return run.id

    def _seeded_node(self, run: WorkflowRecord, node: NodeRow, letter: str) -> NodeRow:
        """The node with a task or sub-workflow in the state that leads to this status."""
        status = catalog.NODE_STATUSES[letter]
        if status in {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.SKIPPED}:
            return replace(node, status=status)
        if node.is_subworkflow:
            return self._updated_node(replace(node, sub_workflow_id=self._seed_run(*catalog.SEEDED_SUB_RUN, run)))
        kind, started_at = KINDS_BY_NAME[node.name], run.created_at + timedelta(seconds=node.index % 7)
        task = self.send(kind, at=started_at, workflow_id=run.id)
        if status is not WorkflowTaskStatus.ENQUEUED:
            self.start(task.id, HEALTHY_WORKERS[node.index % 3], started_at, last_heartbeat_at=self.now())
        if status.is_terminal:
            took = timedelta(seconds=kind.run_s * (0.6 + node.index % 7 / 10))
            self.finish(task.id, TaskStatus(status), started_at + took)
        return self._updated_node(replace(node, task_id=task.id))

    def _seed_logs(self) -> None:
        """Add events and audit entries, among them the pause of a queue."""
        recovered = {"decision": "retry", "reason": "OWNER_LOST", "silence_s": 304.2}
        self.record_event(EventKind.RETENTION_FINISHED, {"heartbeats": 4_112, "events": 310}, ago_s=3480)
        self.record_event(EventKind.WORKER_LOST, {"silence_s": 301}, ago_s=360, worker_id=LOST_WORKER.worker_id)
        for ago_s, task_id in zip((340, 338, 75), self.task_ids[-3:], strict=True):
            self.record_event(EventKind.TASK_RECOVERED, recovered, ago_s=ago_s, task_id=task_id)
        self.record_event(EventKind.SWEEP_FINISHED, {"retry": 3}, ago_s=70, worker_id=WORKERS[0].worker_id)
        failed_mail = {"filter": [{"is_wanted": True, "statuses": ["FAILED"], "names": ["mail.send"]}]}
        self.record_action("sweep", {}, affected=6, ago_s=1020, reason="hourly", actor="cron")
        pause: dict[str, Any] = {"affected": 1, "ago_s": 600, "reason": "feed is broken", "actor": "ana"}
        self.paused_queues["imports"] = self.record_action("pause_queue", {"queue": "imports"}, **pause)
        self.record_action("retry", failed_mail, affected=41, ago_s=203, reason="smtp is back", actor="ana")


def _node_state(node: NodeRow) -> NodeState:
    status, join = WorkflowTaskStatus(node.status), JoinType(node.join)
    return make_row(NodeState, node, status=status, join=join, context_dependencies=())
