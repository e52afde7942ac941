"""A small app to make workflows of, and what a refused one says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest

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
from horsies.codec.ids import ID_GENERATOR
from horsies.model.capacity import QueueCapacity
from horsies.model.task import TaskAttemptOutcome
from horsies.model.workflow.plan import NodePlan, OnError, WorkflowDefinitions, WorkflowPlan
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStore, FinishedAttempt, FinishStore, TaskStart
from horsies.store.database import Database
from horsies.workflows.outbox import OutboxProcessor
from horsies.workflows.start import BUILD_TIMEOUT_S, start_run
from tests.support.store import Connection
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
    """The codes of all faults that `make` is refused for, in order."""
    with pytest.raises(WorkflowValidationError) as refused:
        make()
    return [fault.code for fault in refused.value.faults]


# Runs of workflows without a worker: plans made by hand, and tasks that end as a test says.

Outcome = str | dict[str, Any]
"""`ok`, `err`, or a document of one's own."""


def node(index: int, *after: int, **others: Any) -> NodePlan:
    """A node that waits for others; its task has the name of its id, and it may read the results of all of them."""
    usual: dict[str, Any] = {
        "node_id": f"n{index}",
        "name": f"n{index}",
        "queue_name": "default",
        "priority": 100,
        "dependencies": after,
    }
    return NodePlan(index=index, **usual | others)


def sub_node(index: int, key: str, *after: int, **others: Any) -> NodePlan:
    """A node that stands for the run of a sub-workflow."""
    sub = {"name": key, "definition_key": key, "is_subworkflow": True, "queue_name": None, "priority": None}
    return node(index, *after, **sub | others)


def plan(*nodes: NodePlan, **others: Any) -> WorkflowPlan:
    usual: dict[str, Any] = {"name": "flow", "definition_key": "tests.flow", "on_error": OnError.FAIL, "nodes": nodes}
    return WorkflowPlan(**usual | others)


@dataclass(frozen=True, slots=True)
class FakeDefinitions:
    """The definitions of a process, and what each was built with."""

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
    """A database, and someone who does the work of a worker's children in it, as the statements of a worker would."""

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
        workflow_id = ID_GENERATOR.next_uuid()
        assert await start_run(self.database, plan(*nodes, **others), workflow_id)
        return workflow_id

    async def claim_and_start(self, limit: int = 1000) -> list[ClaimedRow]:
        """Begin what is due; in the order of the queue."""
        # Children for half of them: those start in the same breath, the others by a statement of their own.
        return await self.start_tasks(await self.claim_only(limit, children=limit // 2))

    async def claim_only(self, limit: int = 1000, *, children: int = 0) -> list[ClaimedRow]:
        """Claim what is due, and begin only so much of it."""
        request = ClaimRequest(
            worker_id=self.worker_id,
            hostname="here",
            queues=[QueueCapacity(name="default", capacity=1000)],
            limit=limit,
            pids=[7] * children,
        )
        return await ClaimStore(self.database).claim(request)

    async def start_tasks(self, rows: Sequence[ClaimedRow]) -> list[ClaimedRow]:
        """Begin what was claimed; returns those that run."""
        waiting = [TaskStart(claim=self._hold(row), pid=7) for row in rows if row.status == "CLAIMED"]
        store = ClaimStore(self.database)
        ids = {row.id for row in await store.start(waiting, hostname="here")} if waiting else set[UUID]()
        begun = [row for row in rows if row.status == "RUNNING" or row.id in ids]
        for row in begun:
            self.started.append(row.task_name)
            self.contexts[row.task_name] = json.loads(row.context or "{}")
        return begun

    async def finish(self, rows: Sequence[ClaimedRow], outcome: Callable[[str], Outcome] = lambda _: "ok") -> None:
        """Store how these ended, without advancing anything."""
        finishes = [self._finish(row, outcome(row.task_name)) for row in rows]
        if finishes:
            await FinishStore(self.database).finish(finishes, max_crashes=3)

    async def retry(self, row: ClaimedRow) -> None:
        """Store a failure after which the task would like to start again."""
        await FinishStore(self.database).finish([self._finish(row, "err", retry_delay_s=0.0)], max_crashes=3)

    async def run(
        self, outcome: Callable[[str], Outcome] = lambda _: "ok", *, until: str | None = None, at_once: int = 1000
    ) -> None:
        """Work until nothing is due, or just before the task of this name; so many tasks at a time."""
        await self.outbox.process()
        while rows := await self.claim_and_start(at_once):
            waiting = [row for row in rows if row.task_name == until]
            await self.finish([row for row in rows if row not in waiting], outcome)
            await self.outbox.process()
            if waiting:
                return

    def _hold(self, row: ClaimedRow) -> ClaimRef:
        return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=self.worker_id)

    def _finish(self, row: ClaimedRow, outcome: Outcome, *, retry_delay_s: float | None = None) -> FinishedAttempt:
        if outcome == "err":
            document: dict[str, Any] = {"err": {"error_code": "BROKEN", "message": row.task_name}}
        else:
            document = {"ok": row.task_name} if isinstance(outcome, str) else outcome
        is_ok = "ok" in document
        return FinishedAttempt(
            claim=self._hold(row),
            outcome=TaskAttemptOutcome.COMPLETED if is_ok else TaskAttemptOutcome.FAILED,
            document=json.dumps(document),
            error_code=None if is_ok else document["err"]["error_code"],
            error_message=None,
            retry_delay_s=retry_delay_s,
        )


async def run_row(connection: Connection, workflow_id: UUID) -> dict[str, Any]:
    """The row of a run; JSON as values."""
    row = await connection.fetchrow("SELECT * FROM horsies_workflows WHERE id = $1", workflow_id)
    assert row is not None
    return {name: _value(name, value) for name, value in row.items()}


async def node_statuses(connection: Connection, workflow_id: UUID) -> list[str]:
    """The states of the nodes of a run, by index."""
    rows = await connection.fetch(
        "SELECT status FROM horsies_workflow_tasks WHERE workflow_id = $1 ORDER BY task_index", workflow_id
    )
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


# Random graphs as plans that can be run, and what a database says of the runs that came of them.

NODES = """
SELECT status, result, error, sub_workflow_id FROM horsies_workflow_tasks WHERE workflow_id = $1 ORDER BY task_index
"""


class PlannedDag:
    """A graph and those below it; `path` is before the name of each task, so that a name stands for one node alone."""

    def __init__(self, dag: Dag, path: str = "") -> None:
        self.dag = dag
        self.path = path
        self.children = {
            index: PlannedDag(each.child, f"{path}n{index}.")
            for index, each in enumerate(dag.nodes)
            if each.child is not None
        }
        self.plan = plan(
            *(self._node(index) for index in range(len(dag.nodes))),
            definition_key=path or "tests.random",
            on_error=dag.on_error,
            success_rule=dag.success,
            output_index=dag.output,
        )

    def definitions(self) -> Iterator[tuple[str, WorkflowPlan]]:
        for child in self.children.values():
            yield child.path, child.plan
            yield from child.definitions()

    def successes(self) -> Iterator[tuple[str, bool]]:
        """How each task ends, by its name."""
        for index, each in enumerate(self.dag.nodes):
            if index in self.children:
                yield from self.children[index].successes()
            else:
                yield f"{self.path}n{index}", each.succeeds

    def starts(self, verdict: RunOutcome) -> Iterator[str]:
        """The names of the tasks that run where it ends like this."""
        for index, end in enumerate(verdict.nodes):
            if end != "SKIPPED" and index in self.children:
                yield from self.children[index].starts(verdict.children[index])
            elif end != "SKIPPED":
                yield f"{self.path}n{index}"

    def _node(self, index: int) -> NodePlan:
        each = self.dag.nodes[index]
        others: dict[str, Any] = {
            "join": each.join,
            "min_success": each.min_success,
            "allow_failed_deps": each.allow_failed_deps,
            "ctx_from": tuple(f"n{one}" for one in each.context) or None,
        }
        if index in self.children:
            return sub_node(index, self.children[index].path, *each.dependencies, **others)
        return node(index, *each.dependencies, name=f"{self.path}n{index}", **others)


async def stored_outcome(connection: Connection, workflow_id: object, dag: Dag) -> RunOutcome:
    """How a run ended, with all below it; its result is seen to be what its graph says on the way."""
    run = await connection.fetchrow("SELECT status, result, error FROM horsies_workflows WHERE id = $1", workflow_id)
    nodes = await connection.fetch(NODES, workflow_id)
    assert run is not None
    assert json.loads(run["result"]) == _result(dag, nodes)
    blamed = [index for index, each in enumerate(nodes) if run["error"] and each["error"] == run["error"]]
    children = {
        index: await stored_outcome(connection, nodes[index]["sub_workflow_id"], each.child)
        for index, each in enumerate(dag.nodes)
        if each.child is not None and nodes[index]["sub_workflow_id"]
    }
    return RunOutcome(
        status=run["status"],
        nodes=[each["status"] for each in nodes],
        failed_node=blamed[0] if blamed else None,
        code=json.loads(run["error"])["error_code"] if run["error"] and not blamed else None,
        children=children,
    )


def _result(dag: Dag, nodes: list[Any]) -> Any:
    """That of the output node, or a map over those that nobody waits for."""
    documents = [json.loads(each["result"]) if each["result"] else {"err": json.loads(each["error"])} for each in nodes]
    if dag.output is not None:
        return documents[dag.output]
    waited_for = {one for each in dag.nodes for one in each.dependencies}
    return {"ok": {f"n{index}": one for index, one in enumerate(documents) if index not in waited_for}}


# Workflow specs of the tasks in `workflow_app`. They are kept out of that module: a worker imports it as its
# app and refuses undecorated workflow builders there.


def diamond(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """1, then 2 and 4 beside each other, then their sum: 6."""
    first = task_of(app, "step").node(node_id="first")(value=1, seconds=seconds)
    left = task_of(app, "double").node(node_id="left")(number=from_node(first))
    right = task_of(app, "step").node(node_id="right", waits_for=[first])(value=4, seconds=seconds)
    both = [left, right]
    last = task_of(app, "total").node(node_id="sum", waits_for=both, workflow_ctx_from=both)()
    return app.workflow("diamond", [first, left, right, last], output=last, definition_key="tests.diamond")


def nested(app: Horsies, *, seconds: float = 0.0) -> WorkflowSpec[int]:
    """5, doubled by a sub-workflow, and doubled again: 20."""
    first = task_of(app, "step").node(node_id="first")(value=5, seconds=seconds)
    child: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 5}, waits_for=[first], node_id="child")
    last = task_of(app, "double").node(node_id="last")(number=from_node(child))
    return app.workflow("nested", [first, child, last], output=last, definition_key="tests.nested")
