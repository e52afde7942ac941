"""Workflow helpers: a small app, hand-made plans, a driver that runs them without a worker, and random graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
    WorkflowSpec,
    WorkflowValidationError,
    from_node,
)
from horsies.engine.pool.protocol import parse_details
from horsies.model.capacity import QueueCapacity
from horsies.model.task import TaskAttemptOutcome
from horsies.model.workflow.plan import NodePlan, OnError, WorkflowDefinitions, WorkflowPlan
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStore, FinishedAttempt
from horsies.store.database import Database
from horsies.store.workflows import WORKFLOWS
from horsies.workflows.outbox import OutboxProcessor
from horsies.workflows.start import BUILD_TIMEOUT_S, start_run
from tests.support.store import Connection, finish_attempts
from tests.support.workflow_app import Doubled, task_of
from tests.support.workflow_graphs import Dag, RunOutcome

app = Horsies(AppConfig())

app_with_queues = Horsies(
    AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name="mail", priority=7), CustomQueueConfig(name="slow", priority=50)],
    )
)


@app.task("add")
def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("total")
def total(
    first: TaskResult[int, TaskError], second: TaskResult[int, TaskError] | None = None
) -> TaskResult[int, TaskError]:
    return TaskResult(ok=first.ok_value + (second.ok_value if second else 0))


@app.task("spell")
def spell(number: TaskResult[str, TaskError]) -> TaskResult[str, TaskError]:
    return number


@app.task("report")
def report(
    title: str, workflow_ctx: WorkflowContext | None = None, workflow_meta: WorkflowMeta | None = None
) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{title} {workflow_ctx} {workflow_meta}")


@app_with_queues.task(
    "post",
    queue_name="mail",
    retry_policy=RetryPolicy.fixed([5], auto_retry_for=["BUSY"]),
    timeout_ms=9000,
    flags=["infrastructure_resilient"],
)
def post(to: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=to)


def fault_codes(make: Callable[[], Any]) -> list[object]:
    """Codes of all faults for which `make` is rejected, in order."""
    with pytest.raises(WorkflowValidationError) as caught:
        make()
    return [fault.code for fault in caught.value.faults]


# Runs without a worker: plans made by hand, and tasks whose outcome the test chooses

Outcome = str | dict[str, Any]
"""`ok`, `err`, or a whole result document."""


def node(index: int, *after: int, **others: Any) -> NodePlan:
    """A node that depends on the nodes `after`; its task is named like its node id."""
    usual: dict[str, Any] = {
        "node_id": f"n{index}",
        "name": f"n{index}",
        "queue_name": "default",
        "priority": 100,
        "dependencies": after,
    }
    return NodePlan(index=index, **usual | others)


def sub_node(index: int, key: str, *after: int, **others: Any) -> NodePlan:
    """A node that starts a sub-workflow."""
    sub = {"name": key, "definition_key": key, "is_subworkflow": True, "queue_name": None, "priority": None}
    return node(index, *after, **sub | others)


def plan(*nodes: NodePlan, **others: Any) -> WorkflowPlan:
    usual: dict[str, Any] = {"name": "flow", "definition_key": "tests.flow", "on_error": OnError.FAIL, "nodes": nodes}
    return WorkflowPlan(**usual | others)


@dataclass(frozen=True, slots=True)
class FakeDefinitions:
    """Known workflow definitions; records the arguments of each build."""

    plans: Mapping[str, WorkflowPlan] = field(default_factory=dict[str, WorkflowPlan])
    built: list[tuple[Mapping[str, object], Mapping[str, object]]] = field(
        default_factory=list[tuple["Mapping[str, object]", "Mapping[str, object]"]]
    )

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        self.built.append((kwargs, injected))
        return self.plans.get(definition_key)


class WorkflowDriver:
    """Runs workflow tasks with a worker's statements, but without a worker."""

    def __init__(
        self, database: Database, *, known: WorkflowDefinitions | None = None, build_timeout_s: float = BUILD_TIMEOUT_S
    ) -> None:
        self.database = database
        self.outbox = OutboxProcessor(database, known or FakeDefinitions(), build_timeout_s=build_timeout_s)
        self.worker_id = uuid4()
        self.started: list[str] = []
        """Names of the tasks that ran, in order."""
        self.contexts: dict[str, dict[str, Any]] = {}

    async def start_run(self, *nodes: NodePlan, **others: Any) -> UUID:
        workflow_id = uuid7()
        assert await start_run(self.database, plan(*nodes, **others), workflow_id)
        return workflow_id

    async def claim_and_start(self, limit: int = 1000) -> list[ClaimedRow]:
        """Claim and start due tasks, in claim order."""
        # Free children for half of them: those start with the claim, the others by a separate statement.
        return await self.start_tasks(await self.claim_only(limit, children=limit // 2))

    async def claim_only(self, limit: int = 1000, *, children: int = 0) -> list[ClaimedRow]:
        """Claim due tasks; only `children` of them start."""
        request = ClaimRequest(
            worker_id=self.worker_id,
            hostname="here",
            queues=[QueueCapacity(name="default", capacity=1000)],
            limit=limit,
            pids=[7] * children,
        )
        return await ClaimStore(self.database).claim(request)

    async def start_tasks(self, rows: Sequence[ClaimedRow]) -> list[ClaimedRow]:
        """Start claimed tasks; returns those that are RUNNING."""
        waiting = {self._claim_ref(row): 7 for row in rows if row.worker_pid is None}
        store = ClaimStore(self.database)
        ids = {row.id for row in await store.start(waiting, hostname="here")} if waiting else set[UUID]()
        started = [row for row in rows if row.worker_pid is not None or row.id in ids]
        for row in started:
            self.started.append(row.task_name)
            self.contexts[row.task_name] = json.loads(parse_details(row.details).workflow_context or "{}")
        return started

    async def finish(self, rows: Sequence[ClaimedRow], outcome: Callable[[str], Outcome] = lambda _: "ok") -> None:
        """Store the outcomes of these tasks without advancing their runs."""
        finishes = [self._finish(row, outcome(row.task_name)) for row in rows]
        if finishes:
            await finish_attempts(ClaimStore(self.database), finishes)

    async def retry(self, row: ClaimedRow) -> None:
        """Store a failure with a retry."""
        await ClaimStore(self.database).finish([self._finish(row, "err", retry_delay_s=0.0)])

    async def run(
        self, outcome: Callable[[str], Outcome] = lambda _: "ok", *, until: str | None = None, at_once: int = 1000
    ) -> None:
        """Run until nothing is due, or until task `until` has started; `at_once` tasks at a time."""
        await self.outbox.process()
        while rows := await self.claim_and_start(at_once):
            waiting = [row for row in rows if row.task_name == until]
            await self.finish([row for row in rows if row not in waiting], outcome)
            await self.outbox.process()
            if waiting:
                return

    def _claim_ref(self, row: ClaimedRow) -> ClaimRef:
        return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=self.worker_id)

    def _finish(self, row: ClaimedRow, outcome: Outcome, *, retry_delay_s: float | None = None) -> FinishedAttempt:
        if outcome == "err":
            document: dict[str, Any] = {"err": {"error_code": "BROKEN", "message": row.task_name}}
        else:
            document = {"ok": row.task_name} if isinstance(outcome, str) else outcome
        is_ok = "ok" in document
        return FinishedAttempt(
            claim=self._claim_ref(row),
            outcome=TaskAttemptOutcome.COMPLETED if is_ok else TaskAttemptOutcome.FAILED,
            document=json.dumps(document),
            error_code=None if is_ok else document["err"]["error_code"],
            error_message=None,
            retry_delay_s=retry_delay_s,
        )


async def run_row(connection: Connection, workflow_id: UUID) -> dict[str, Any]:
    """The row of a run, with JSON columns decoded."""
    row = await connection.fetchrow("SELECT * FROM horsies_workflows WHERE id = $1", workflow_id)
    assert row is not None
    return {name: _value(name, value) for name, value in row.items()}


async def node_statuses(connection: Connection, workflow_id: UUID) -> list[str]:
    """Statuses of the nodes of a run, by index; a node is RUNNING while its task is."""
    rows = await connection.fetch(WORKFLOWS.node_infos.sql, workflow_id)
    return [row["status"] for row in rows]


async def node_row(connection: Connection, workflow_id: UUID, index: int) -> dict[str, Any]:
    row = await connection.fetchrow(
        "SELECT * FROM horsies_workflow_tasks WHERE workflow_id = $1 AND task_index = $2", workflow_id, index
    )
    assert row is not None
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    if value is None or name not in {"result", "error", "sub_workflow_summary"}:
        return value
    return json.loads(value)


# Random graphs as plans, and their stored outcomes

NODES = """
SELECT status, result, error, sub_workflow_id FROM horsies_workflow_tasks WHERE workflow_id = $1 ORDER BY task_index
"""


class PlannedDag:
    """A graph with its sub-workflows as plans; task names start with `path`, which makes them unique."""

    def __init__(self, dag: Dag, path: str = "") -> None:
        self.dag = dag
        self.path = path
        self.sub_dags = {
            index: PlannedDag(dag_node.sub_dag, f"{path}n{index}.")
            for index, dag_node in enumerate(dag.nodes)
            if dag_node.sub_dag is not None
        }
        self.plan = plan(
            *(self._node(index) for index in range(len(dag.nodes))),
            definition_key=path or "tests.random",
            on_error=dag.on_error,
            success_rule=dag.success,
            output_index=dag.output,
        )

    def definitions(self) -> Iterator[tuple[str, WorkflowPlan]]:
        for sub_dag in self.sub_dags.values():
            yield sub_dag.path, sub_dag.plan
            yield from sub_dag.definitions()

    def successes(self) -> Iterator[tuple[str, bool]]:
        """Whether each task succeeds, by task name."""
        for index, dag_node in enumerate(self.dag.nodes):
            if index in self.sub_dags:
                yield from self.sub_dags[index].successes()
            else:
                yield f"{self.path}n{index}", dag_node.succeeds

    def starts(self, outcome: RunOutcome) -> Iterator[str]:
        """Names of the tasks that run in a run with this outcome."""
        for index, status in enumerate(outcome.nodes):
            if status != "SKIPPED" and index in self.sub_dags:
                yield from self.sub_dags[index].starts(outcome.sub_runs[index])
            elif status != "SKIPPED":
                yield f"{self.path}n{index}"

    def _node(self, index: int) -> NodePlan:
        dag_node = self.dag.nodes[index]
        others: dict[str, Any] = {
            "join": dag_node.join,
            "min_success": dag_node.min_success,
            "allow_failed_deps": dag_node.allow_failed_deps,
            "ctx_from": tuple(f"n{dependency}" for dependency in dag_node.context) or None,
        }
        if index in self.sub_dags:
            return sub_node(index, self.sub_dags[index].path, *dag_node.dependencies, **others)
        return node(index, *dag_node.dependencies, name=f"{self.path}n{index}", **others)


async def stored_outcome(connection: Connection, workflow_id: object, dag: Dag) -> RunOutcome:
    """Outcome of a run and its sub-workflows; also asserts that each result is the one its graph requires."""
    run = await connection.fetchrow("SELECT status, result, error FROM horsies_workflows WHERE id = $1", workflow_id)
    nodes = await connection.fetch(NODES, workflow_id)
    assert run is not None
    assert json.loads(run["result"]) == _expected_result(dag, nodes)
    failed = [index for index, row in enumerate(nodes) if run["error"] and row["error"] == run["error"]]
    sub_runs = {
        index: await stored_outcome(connection, nodes[index]["sub_workflow_id"], dag_node.sub_dag)
        for index, dag_node in enumerate(dag.nodes)
        if dag_node.sub_dag is not None and nodes[index]["sub_workflow_id"]
    }
    return RunOutcome(
        status=run["status"],
        nodes=[row["status"] for row in nodes],
        failed_node=failed[0] if failed else None,
        code=json.loads(run["error"])["error_code"] if run["error"] and not failed else None,
        sub_runs=sub_runs,
    )


def _expected_result(dag: Dag, nodes: list[Any]) -> Any:
    """Result of the output node, or a map over the leaf nodes."""
    documents = [json.loads(row["result"]) if row["result"] else {"err": json.loads(row["error"])} for row in nodes]
    if dag.output is not None:
        return documents[dag.output]
    dependencies = {index for dag_node in dag.nodes for index in dag_node.dependencies}
    return {"ok": {f"n{index}": document for index, document in enumerate(documents) if index not in dependencies}}


# Workflow specs with the tasks of `workflow_app`. Not in that module, because workers import it and reject
# undecorated workflow builders.


def diamond(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """1, then 2 and 4 in parallel, then their sum: 6."""
    first = task_of(app, "step").node(node_id="first")(value=1, seconds=seconds)
    left = task_of(app, "double").node(node_id="left")(number=from_node(first))
    right = task_of(app, "step").node(node_id="right", waits_for=[first])(value=4, seconds=seconds)
    both = [left, right]
    last = task_of(app, "total").node(node_id="sum", waits_for=both, workflow_ctx_from=both)()
    return app.workflow("diamond", [first, left, right, last], output=last, definition_key="tests.diamond")


def nested(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """5, doubled by a sub-workflow, and doubled again: 20."""
    first = task_of(app, "step").node(node_id="first")(value=5, seconds=seconds)
    sub: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 5}, waits_for=[first], node_id="child")
    last = task_of(app, "double").node(node_id="last")(number=from_node(sub))
    return app.workflow("nested", [first, sub, last], output=last, definition_key="tests.nested")
