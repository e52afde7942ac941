"""Workflows of the tasks of `flow_app`, made for whichever app asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies import SubWorkflowNode, WorkflowSpec, from_node
from tests.support.flow_app import Doubled, task_of

if TYPE_CHECKING:
    from horsies import Horsies


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
