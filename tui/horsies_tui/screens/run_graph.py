"""The graph of a workflow run, drawn as a tree or in layers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from horsies.model.workflow.plan import JoinType, WorkflowTaskStatus, is_chosen_node_id
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail
from horsies_tui.format import format_elapsed, plural
from horsies_tui.proposals.model import FAILED_OR_SKIPPED
from horsies_tui.theme import Glyph
from horsies_tui.widgets.row_list import Heading, Tone

# The graph of a run


# No slots: cached_property needs a __dict__.
@dataclass(frozen=True)
class RunGraph:
    """Nodes by index. In the tree a node is drawn under its first dependency; the others only refer to it."""

    nodes: Mapping[int, NodeRow]

    @classmethod
    def of(cls, nodes: Iterable[NodeRow]) -> RunGraph:
        return cls({node.index: node for node in nodes})

    @cached_property
    def children(self) -> Mapping[int, Sequence[NodeRow]]:
        """Nodes drawn under each node."""
        children: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            if node.dependencies:
                children.setdefault(node.dependencies[0], []).append(node)
        return children

    @cached_property
    def dependents(self) -> Mapping[int, Sequence[NodeRow]]:
        """Nodes that wait for each node, wherever they are drawn."""
        dependents: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            for dependency in node.dependencies:
                dependents.setdefault(dependency, []).append(node)
        return dependents

    @property
    def roots(self) -> list[NodeRow]:
        return [node for node in self.nodes.values() if not node.dependencies]

    def other_dependents(self, members: Sequence[NodeRow]) -> list[NodeRow]:
        """Return the nodes that wait for one of the members but are drawn under another node."""
        indexes = {member.index for member in members}
        others = {
            node.index: node
            for index in indexes
            for node in self.dependents.get(index, ())
            if node.dependencies[0] not in indexes
        }
        return [others[index] for index in sorted(others)]

    def count_descendants(self, members: Sequence[NodeRow]) -> int:
        """Count the nodes drawn under these, at any depth."""
        stack, count = [member.index for member in members], 0
        while stack:
            children = self.children.get(stack.pop(), ())
            count += len(children)
            stack += [node.index for node in children]
        return count

    def layers(self) -> list[list[NodeRow]]:
        """Return the nodes by depth: each is one layer below its deepest dependency."""
        depth: dict[int, int] = {}
        # Kahn's algorithm: a node is ready when all its dependencies have a depth.
        unresolved = {node.index: len(node.dependencies) for node in self.nodes.values()}
        ready = deque(node.index for node in self.roots)
        while ready:
            index = ready.popleft()
            depth[index] = max((depth[dependency] + 1 for dependency in self.nodes[index].dependencies), default=0)
            for node in self.dependents.get(index, ()):
                unresolved[node.index] -= 1
                if not unresolved[node.index]:
                    ready.append(node.index)
        layers: list[list[NodeRow]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for index in sorted(depth):
            layers[depth[index]].append(self.nodes[index])
        return layers

    def failed_subgraph(self) -> RunGraph:
        """Return the failed and skipped nodes with their ancestors in the tree."""
        kept: set[int] = set()
        for node in self.nodes.values():
            index = node.index
            while node.status in FAILED_OR_SKIPPED and index not in kept:
                kept.add(index)
                dependencies = self.nodes[index].dependencies
                # A root leads to itself, which is kept by now and ends the loop.
                index = dependencies[0] if dependencies else index
        return RunGraph({index: node for index, node in self.nodes.items() if index in kept})

    def skip_reason(self, node: NodeRow) -> str:
        """Return the failed ancestor that caused the skip; without one, the run had finished."""
        cause: NodeRow | None = node
        while cause is not None and cause.status != WorkflowTaskStatus.FAILED:
            dependencies = [self.nodes[index] for index in cause.dependencies if index in self.nodes]
            cause = next((node for node in dependencies if node.status in FAILED_OR_SKIPPED), None)
        return "run finished" if cause is None else f"[{cause.index}] failed"


# Texts of nodes

MAX_DEPENDENCIES_LISTED: Final = 4
"""A join with more dependencies shows only their number."""

NODE_GLYPHS: Final[Mapping[str, str]] = {
    WorkflowTaskStatus.PENDING: Glyph.WAITING,
    WorkflowTaskStatus.READY: Glyph.WAITING,
    WorkflowTaskStatus.ENQUEUED: Glyph.QUEUED,
    WorkflowTaskStatus.RUNNING: Glyph.RUNNING,
    WorkflowTaskStatus.COMPLETED: Glyph.DONE,
    WorkflowTaskStatus.FAILED: Glyph.FAILED,
    WorkflowTaskStatus.SKIPPED: Glyph.SKIPPED,
}

NODE_TONES: Final[Mapping[str, Tone]] = {
    WorkflowTaskStatus.PENDING: Tone.DIM,
    WorkflowTaskStatus.READY: Tone.PLAIN,
    WorkflowTaskStatus.ENQUEUED: Tone.PLAIN,
    WorkflowTaskStatus.RUNNING: Tone.BUSY,
    WorkflowTaskStatus.COMPLETED: Tone.GOOD,
    WorkflowTaskStatus.FAILED: Tone.BAD,
    WorkflowTaskStatus.SKIPPED: Tone.WARN,
}


def legend() -> str:
    meanings = {
        Glyph.DONE: "done",
        Glyph.FAILED: "failed",
        Glyph.RUNNING: "running",
        Glyph.QUEUED: "queued",
        Glyph.WAITING: "waiting",
        Glyph.SKIPPED: "skipped",
        Glyph.OUTPUT: "output",
    }
    return "  ".join(f"{sign} {meaning}" for sign, meaning in meanings.items())


def node_text(nodes: Sequence[NodeRow], detail: WorkflowDetail) -> str:
    """Return the text of one node with its join, or the count of similar nodes."""
    first = nodes[0]
    glyph = NODE_GLYPHS[first.status]
    if len(nodes) > 1:
        return f"{glyph} ×{len(nodes)} {first.name}"
    output = f" {Glyph.OUTPUT}" if first.index == detail.run.output_index else ""
    name = _node_name(first, detail.run.name)
    return f"{glyph} [{first.index}] {name}{output}{_sub_workflow_text(first, detail)}{join_text(first)}"


def _node_name(node: NodeRow, workflow_name: str) -> str:
    """Return the task name, preceded by the node id if that was chosen by the user."""
    is_chosen = is_chosen_node_id(node.node_id, node.index, task_name=node.name, workflow_name=workflow_name)
    return f"{node.node_id} ({node.name})" if is_chosen else node.name


def _sub_workflow_text(node: NodeRow, detail: WorkflowDetail) -> str:
    run = detail.sub_workflows.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if run is None:
        return "  workflow" if node.is_subworkflow else ""
    return f"  workflow {run.done}/{run.total}"


def join_text(node: NodeRow) -> str:
    """Name what a node with several dependencies needs: `needs [0] and [1]`."""
    count = len(node.dependencies)
    if count < 2:
        return ""
    indexes = [f"[{index}]" for index in node.dependencies]
    is_listed = count <= MAX_DEPENDENCIES_LISTED
    if node.join == JoinType.QUORUM:
        return f"  needs {node.min_success} of {' '.join(indexes) if is_listed else count}"
    if not is_listed:
        return f"  needs {'all' if node.join == JoinType.ALL else 'one'} of {count}"
    word = "and" if node.join == JoinType.ALL else "or"
    return f"  needs {', '.join(indexes[:-1])} {word} {indexes[-1]}"


def node_note(nodes: Sequence[NodeRow], detail: WorkflowDetail, graph: RunGraph) -> str:
    """Return how a node went or why it waits; the list itself shows the age of running nodes."""
    first = nodes[0]
    match WorkflowTaskStatus(first.status):
        case WorkflowTaskStatus.FAILED:
            return "  ".join(dict.fromkeys(node.error_code or "failed" for node in nodes))
        case WorkflowTaskStatus.SKIPPED:
            return f"skipped: {graph.skip_reason(first)}"
        case WorkflowTaskStatus.COMPLETED if first.started_at and first.completed_at:
            return format_elapsed(first.completed_at - first.started_at) if len(nodes) == 1 else ""
        case WorkflowTaskStatus.ENQUEUED:
            return "queued"
        case WorkflowTaskStatus.READY:
            return "held" if detail.run.status == "PAUSED" else "ready"
        case WorkflowTaskStatus.PENDING if first.dependencies:
            return _waiting_text(first, graph)
        case _:
            return ""


def _waiting_text(node: NodeRow, graph: RunGraph) -> str:
    """Return the dependency it waits for or, if there are several, their progress."""
    if len(node.dependencies) == 1:
        return f"waits for [{node.dependencies[0]}]"
    counts = Counter(graph.nodes[index].status for index in node.dependencies if index in graph.nodes)
    failed = sum(counts[status] for status in FAILED_OR_SKIPPED)
    done = f"{counts[WorkflowTaskStatus.COMPLETED]} of {len(node.dependencies)} done"
    return f"{done}, {failed} failed" if failed else done


# Lines of the tree and the layers

MAX_SIMILAR_SIBLINGS: Final = 20
"""More siblings with the same name and status share one line."""

MAX_POINTERS: Final = 4
"""More references under one node share one line."""

MAX_INDENT_LEVELS: Final = 12
"""Deeper nodes are not indented further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """Display options of the graph, and which lines are folded."""

    shows_layers: bool = False
    shows_only_failed: bool = False
    folded: frozenset[Hashable] = frozenset()
    expanded: frozenset[Hashable] = frozenset()
    """Groups of similar nodes that are shown one by one."""

    def fold(self, line: NodeLine) -> GraphView:
        return replace(self, folded=self.folded | {line.key})

    def unfold(self, line: NodeLine) -> GraphView:
        """Show the children of a folded node, or the members of a group."""
        if line.key in self.folded:
            return replace(self, folded=self.folded - {line.key})
        return replace(self, expanded=self.expanded | {line.key}) if len(line.nodes) > 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One line: a node, a group of similar nodes, or a reference to nodes drawn elsewhere (`is_pointer`)."""

    key: Hashable
    parent_key: Hashable | None
    """Key of the line above in the tree."""
    nodes: tuple[NodeRow, ...]
    indent: str
    text: str
    note: str
    status: str
    has_children: bool = False
    is_pointer: bool = False


GraphLine: TypeAlias = NodeLine | Heading


def graph_lines(detail: WorkflowDetail, view: GraphView) -> tuple[GraphLine, ...]:
    """Return the lines of the tree or of the layers."""
    graph = RunGraph.of(detail.nodes)
    shown = graph.failed_subgraph() if view.shows_only_failed else graph
    drawing = _GraphDrawing(detail, graph, shown, view)
    return tuple(drawing.layers() if view.shows_layers else drawing.tree())


@dataclass(frozen=True, slots=True)
class _TreeItem:
    """A line before it is drawn: its place in the tree and its nodes."""

    key: Hashable
    parent_key: Hashable | None
    nodes: tuple[NodeRow, ...]
    is_pointer: bool = False


@dataclass(frozen=True, slots=True)
class _GraphDrawing:
    detail: WorkflowDetail
    graph: RunGraph
    """All nodes, also hidden ones: a hidden node may be the reason of a skip."""
    shown: RunGraph
    view: GraphView

    def tree(self) -> Iterator[NodeLine]:
        # An explicit stack, next line last: a chain may be deeper than Python's recursion limit.
        stack = self._with_branches(self._group_similar(self.shown.roots, parent_key=None), "")
        while stack:
            item, indent, branch = stack.pop()
            line = self._line(item, indent + branch)
            yield line
            if line.has_children and item.key not in self.view.folded:
                trunk = "   " if branch == Glyph.LAST_BRANCH else f"{Glyph.TRUNK}  "
                child_indent = indent + trunk if len(indent) < 3 * MAX_INDENT_LEVELS else indent
                stack += self._with_branches(self._child_items(item), child_indent)

    def layers(self) -> Iterator[GraphLine]:
        for depth, nodes in enumerate(self.shown.layers()):
            counts = Counter(node.status for node in nodes)
            states = "  ".join(f"{NODE_GLYPHS[status]} {count}" for status, count in sorted(counts.items()))
            yield Heading(f"layer {depth}   {plural(len(nodes), 'node')}   {states}")
            for item in self._group_similar(nodes, parent_key=("layer", depth)):
                yield replace(self._line(item, ""), has_children=False)

    def _with_branches(self, items: Sequence[_TreeItem], indent: str) -> list[tuple[_TreeItem, str, str]]:
        """Return sibling items in reverse order, each with its indent and branch glyph."""
        # Not strict: without items there is still the last branch.
        branches = [Glyph.BRANCH] * (len(items) - 1) + [Glyph.LAST_BRANCH]
        return [(item, indent, branch) for item, branch in zip(items, branches, strict=False)][::-1]

    def _child_items(self, item: _TreeItem) -> list[_TreeItem]:
        # Of all members: a group of similar nodes is drawn as one.
        children = [node for member in item.nodes for node in self.shown.children.get(member.index, ())]
        referenced = self.shown.other_dependents(item.nodes)
        children.sort(key=lambda node: node.index)
        return [*self._group_similar(children, parent_key=item.key), *_pointers(referenced, item.key)]

    def _group_similar(self, nodes: Sequence[NodeRow], *, parent_key: Hashable | None) -> list[_TreeItem]:
        """Return one item per node; many siblings with the same name and status share one."""
        counts = Counter((node.name, node.status) for node in nodes)
        groups: dict[Hashable, list[NodeRow]] = {}
        for node in nodes:
            kind = (node.name, node.status)
            group_key = ("group", parent_key, *kind)
            is_grouped = counts[kind] > MAX_SIMILAR_SIBLINGS and group_key not in self.view.expanded
            groups.setdefault(group_key if is_grouped else node.index, []).append(node)
        return [_TreeItem(key, parent_key, tuple(members)) for key, members in groups.items()]

    def _line(self, item: _TreeItem, indent: str) -> NodeLine:
        has_children = any(member.index in self.shown.dependents for member in item.nodes)
        return NodeLine(
            key=item.key,
            parent_key=item.parent_key,
            nodes=item.nodes,
            indent=indent,
            text=self._pointer_text(item.nodes) if item.is_pointer else self._node_text(item),
            note="" if item.is_pointer else node_note(item.nodes, self.detail, self.graph),
            status=item.nodes[0].status,
            has_children=has_children and not item.is_pointer,
            is_pointer=item.is_pointer,
        )

    def _node_text(self, item: _TreeItem) -> str:
        is_folded = item.key in self.view.folded
        hidden = f"  ({self.shown.count_descendants(item.nodes)} below)" if is_folded else ""
        return node_text(item.nodes, self.detail) + hidden

    def _pointer_text(self, nodes: Sequence[NodeRow]) -> str:
        indexes = ", ".join(f"[{node.index}]" for node in nodes[:MAX_POINTERS])
        more = f" and {len(nodes) - MAX_POINTERS} more" if len(nodes) > MAX_POINTERS else ""
        return f"{Glyph.POINTER} see {indexes}{more}"


def _pointers(nodes: Sequence[NodeRow], parent_key: Hashable) -> list[_TreeItem]:
    """Return references to nodes that also wait for this one but are drawn elsewhere."""
    if len(nodes) > MAX_POINTERS:
        return [_TreeItem(("see", parent_key), parent_key, tuple(nodes), is_pointer=True)]
    return [_TreeItem(("see", parent_key, node.index), parent_key, (node,), is_pointer=True) for node in nodes]
