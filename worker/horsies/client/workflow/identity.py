"""Whether the nodes of a workflow can be told apart; nothing else about them can be said before they can."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from horsies.client.workflow.nodes import SubWorkflowNode, TaskNode
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.workflow.names import LONGEST_NODE_ID, is_node_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horsies.client.workflow.nodes import AnyNode


def identity_faults(written: Sequence[object]) -> Iterator[WorkflowValidationError]:
    """What is no node, has an id that cannot be one, or is there more than once."""
    nodes: list[AnyNode] = []
    for each in written:
        if isinstance(each, TaskNode | SubWorkflowNode):
            nodes.append(cast("AnyNode", each))
        else:
            yield _no_node(len(nodes), each)
    ids = Counter(node.id_at(index) for index, node in enumerate(nodes))
    yield from (_unfit(node_id) for node_id in ids if not is_node_id(node_id))
    yield from (_doubled(f"the id {node_id!r}") for node_id, count in ids.items() if count > 1)
    # One without an id of its own would get two.
    listed = Counter(node for node in nodes if node.own_id is None)
    yield from (_doubled(f"the node of {node.name!r}") for node, count in listed.items() if count > 1)


def _no_node(index: int, given: object) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"after {index} nodes: {type(given).__qualname__} is no node",
        code=ErrorCode.WORKFLOW_INVALID_NODE_ID,
        hint="nodes are made by task.node(...)(...), TaskNode and SubWorkflowNode",
    )


def _unfit(node_id: str) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"{node_id!r} cannot be the id of a node",
        code=ErrorCode.WORKFLOW_INVALID_NODE_ID,
        hint=f"1 to {LONGEST_NODE_ID} letters, digits, or any of _ - : .",
    )


def _doubled(what: str) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"{what} is there more than once",
        code=ErrorCode.WORKFLOW_DUPLICATE_NODE_ID,
        hint="give each node an id of its own, and list it once",
    )
