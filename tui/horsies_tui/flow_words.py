"""What is said of the nodes of a run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from horsies.model.workflow.names import default_node_id
from horsies.model.workflow.plan import JoinType
from horsies.model.workflow.status import WorkflowTaskStatus
from horsies_tui.flow_graph import LOST
from horsies_tui.format import took
from horsies_tui.widgets.columns import Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horsies_ops.reads.workflows import NodeRow, WorkflowDetail
    from horsies_tui.flow_graph import Graph
    from horsies_tui.glyphs import Glyphs

FEW: Final = 4
"""So many dependencies are named; of more the number is."""

SIGNS: Final[Mapping[str, Callable[[Glyphs], str]]] = {
    WorkflowTaskStatus.PENDING: lambda signs: signs.waiting,
    WorkflowTaskStatus.READY: lambda signs: signs.waiting,
    WorkflowTaskStatus.ENQUEUED: lambda signs: signs.queued,
    WorkflowTaskStatus.RUNNING: lambda signs: signs.running,
    WorkflowTaskStatus.COMPLETED: lambda signs: signs.done,
    WorkflowTaskStatus.FAILED: lambda signs: signs.failed,
    WorkflowTaskStatus.SKIPPED: lambda signs: signs.skipped,
}

TONES: Final[Mapping[str, Tone]] = {
    WorkflowTaskStatus.PENDING: Tone.DIM,
    WorkflowTaskStatus.READY: Tone.PLAIN,
    WorkflowTaskStatus.ENQUEUED: Tone.PLAIN,
    WorkflowTaskStatus.RUNNING: Tone.BUSY,
    WorkflowTaskStatus.COMPLETED: Tone.GOOD,
    WorkflowTaskStatus.FAILED: Tone.BAD,
    WorkflowTaskStatus.SKIPPED: Tone.WARN,
}


def legend(signs: Glyphs) -> str:
    """What the signs mean."""
    meanings = {
        signs.done: "done", signs.failed: "failed", signs.running: "running", signs.queued: "queued",
        signs.waiting: "waiting", signs.skipped: "skipped", signs.output: "output",
    }  # fmt: skip
    return "  ".join(f"{sign} {meaning}" for sign, meaning in meanings.items())


def said(nodes: Sequence[NodeRow], detail: WorkflowDetail, signs: Glyphs) -> str:
    """A node, or how many of them are alike, and what it waits for."""
    first = nodes[0]
    sign = SIGNS[first.status](signs)
    if len(nodes) > 1:
        return f"{sign} ×{len(nodes)} {first.name}"
    star = f" {signs.output}" if first.index == detail.run.output_index else ""
    return f"{sign} [{first.index}] {_named(first)}{star}{_child(first, detail)}{_joined(first)}"


def _named(node: NodeRow) -> str:
    """What it runs, after its own id where that says more."""
    is_plain = node.node_id in (node.name, default_node_id(node.name, node.index))
    return node.name if is_plain else f"{node.node_id} ({node.name})"


def _child(node: NodeRow, detail: WorkflowDetail) -> str:
    child = detail.children.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if child is None:
        return "  workflow" if node.is_subworkflow else ""
    return f"  workflow {child.done}/{child.total}"


def _joined(node: NodeRow) -> str:
    """What it waits for, where that is more than one."""
    count = len(node.dependencies)
    if count < 2:
        return ""
    named = ",".join(map(str, node.dependencies)) if count <= FEW else f"{count}"
    return f"  quorum {node.min_success} of {count}" if node.join == JoinType.QUORUM else f"  {node.join} of {named}"


def noted(nodes: Sequence[NodeRow], detail: WorkflowDetail, graph: Graph) -> str:
    """What there is to say of how it went, or of why it has not begun; of running ones the list tells the time."""
    first = nodes[0]
    match WorkflowTaskStatus(first.status):
        case WorkflowTaskStatus.FAILED:
            return "  ".join(dict.fromkeys(node.error_code or "failed" for node in nodes))
        case WorkflowTaskStatus.SKIPPED:
            return f"skipped: {graph.why_skipped(first)}"
        case WorkflowTaskStatus.COMPLETED if first.started_at and first.completed_at:
            return took(first.completed_at - first.started_at) if len(nodes) == 1 else ""
        case WorkflowTaskStatus.ENQUEUED:
            return "queued"
        case WorkflowTaskStatus.READY:
            return "held" if detail.run.status == "PAUSED" else "ready"
        case WorkflowTaskStatus.PENDING if first.dependencies:
            return _waiting(first, graph)
        case _:
            return ""


def _waiting(node: NodeRow, graph: Graph) -> str:
    """What it waits for; where that is more than one, how far they have come."""
    if len(node.dependencies) == 1:
        return f"waits for [{node.dependencies[0]}]"
    counts = Counter(graph.nodes[index].status for index in node.dependencies if index in graph.nodes)
    have, lost = counts[WorkflowTaskStatus.COMPLETED], sum(counts[status] for status in LOST)
    parts = {"have": have, "failed": lost, "waiting": len(node.dependencies) - have - lost}
    return ", ".join(f"{word} {count}" for word, count in parts.items() if count)
