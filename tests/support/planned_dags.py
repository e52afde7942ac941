"""Random graphs as plans that can be run, and what a database says of the runs that came of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.flows import node, plan, sub_node
from tests.support.oracle import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.model.workflow.plan import NodePlan, WorkflowPlan
    from tests.support.dags import Dag
    from tests.support.work import Connection

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
            success=dag.success,
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

    def starts(self, verdict: Verdict) -> Iterator[str]:
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


async def stored_verdict(connection: Connection, workflow_id: object, dag: Dag) -> Verdict:
    """How a run ended, with all below it; its result is seen to be what its graph says on the way."""
    run = await connection.fetchrow("SELECT status, result, error FROM horsies_workflows WHERE id = $1", workflow_id)
    nodes = await connection.fetch(NODES, workflow_id)
    assert run is not None
    assert json.loads(run["result"]) == _result(dag, nodes)
    blamed = [index for index, each in enumerate(nodes) if run["error"] and each["error"] == run["error"]]
    children = {
        index: await stored_verdict(connection, nodes[index]["sub_workflow_id"], each.child)
        for index, each in enumerate(dag.nodes)
        if each.child is not None and nodes[index]["sub_workflow_id"]
    }
    return Verdict(
        status=run["status"],
        nodes=[each["status"] for each in nodes],
        blamed=blamed[0] if blamed else None,
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
