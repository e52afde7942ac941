"""A run of a workflow as an indented tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.model.ids import short_form
from horsies.model.text import safe
from horsies.model.workflow.names import default_node_id
from horsies.model.workflow.status import WorkflowTaskStatus
from horsies_ops.cli.ages import age

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horsies_ops.reads.workflows import NodeRow, WorkflowDetail

DEEPEST: Final = 20
"""From how many levels on lines move no further to the right."""

LONGEST_NAME: Final = 60


def tree_lines(detail: WorkflowDetail) -> Iterator[str]:
    """A line for each node, under the first that it waits for; under the others a line that points there."""
    following: dict[int, list[NodeRow]] = {}
    for node in detail.nodes:
        for dependency in node.dependencies:
            following.setdefault(dependency, []).append(node)
    roots = [node for node in detail.nodes if not node.dependencies]
    # A list of what is still to be drawn, the next line last: a chain may be longer than the stack is deep.
    waiting = [(node, "", node is roots[-1], None) for node in reversed(roots)]
    while waiting:
        node, before, is_last, above = waiting.pop()
        bend = "└─ " if is_last else "├─ "
        if above is not None and above != node.dependencies[0]:
            yield f"{before}{bend}see [{node.index}]"
            continue
        yield f"{before}{bend}{_described(node, detail)}"
        below = following.get(node.index, [])
        indent = before if len(before) >= 3 * DEEPEST else before + ("   " if is_last else "│  ")
        waiting += [(each, indent, each is below[-1], node.index) for each in reversed(below)]


def _described(node: NodeRow, detail: WorkflowDetail) -> str:
    star = "  ★ output" if node.index == detail.run.output_index else ""
    parts = [f"[{node.index}] {_named(node)}", node.status, *_waits_for(node)]
    if node.started_at:
        ended_at = node.completed_at or detail.run.created_at + detail.run.age
        parts.append(age(ended_at - node.started_at))
    if node.status == WorkflowTaskStatus.SKIPPED and node.error_message:
        parts.append(safe(node.error_message, limit=LONGEST_NAME))
    elif node.error_code:
        parts.append(safe(node.error_code, limit=LONGEST_NAME))
    if node.task_id:
        parts.append(f"task {short_form(node.task_id)}")
    child = detail.children.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if child:
        parts.append(f"run {child.id} {child.status} {child.done}/{child.total}")
    return "  ".join(parts) + star


def _named(node: NodeRow) -> str:
    """Its id, and what it runs where the id does not say so."""
    node_id, name = safe(node.node_id, limit=LONGEST_NAME), safe(node.name, limit=LONGEST_NAME)
    return node_id if node_id in (name, default_node_id(name, node.index)) else f"{node_id} ({name})"


def _waits_for(node: NodeRow) -> Sequence[str]:
    if len(node.dependencies) < 2:
        return ()
    kind = f"{node.min_success} of" if node.join == "quorum" else f"{node.join} of"
    return (f"{kind} {', '.join(map(str, node.dependencies))}",)
