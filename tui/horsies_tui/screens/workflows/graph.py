"""A run as a graph: which node stands below which, in which layer each is, and why one was skipped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from horsies.model.workflow.plan import JoinType, WorkflowTaskStatus, default_node_id
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail
from horsies_tui.format import format_elapsed
from horsies_tui.theme import Glyphs
from horsies_tui.widgets.row_list import Heading, Tone

FAILED_OR_SKIPPED: Final[tuple[str, ...]] = (WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)


# Without slots, which cached properties cannot do with.
@dataclass(frozen=True)
class RunGraph:
    """Nodes by index. A node stands below the first that it waits for; the others only point to it."""

    nodes: Mapping[int, NodeRow]

    @classmethod
    def of(cls, nodes: Iterable[NodeRow]) -> RunGraph:
        return cls({node.index: node for node in nodes})

    @cached_property
    def children(self) -> Mapping[int, Sequence[NodeRow]]:
        """Those that stand below a node."""
        found: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            if node.dependencies:
                found.setdefault(node.dependencies[0], []).append(node)
        return found

    @cached_property
    def dependents(self) -> Mapping[int, Sequence[NodeRow]]:
        """Those that wait for a node, wherever they stand."""
        found: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            for dependency in node.dependencies:
                found.setdefault(dependency, []).append(node)
        return found

    @property
    def roots(self) -> list[NodeRow]:
        return [node for node in self.nodes.values() if not node.dependencies]

    def other_dependents(self, members: Sequence[NodeRow]) -> list[NodeRow]:
        """Those that wait for one of the members and stand below another node."""
        indexes = {member.index for member in members}
        found = {
            node.index: node
            for index in indexes
            for node in self.dependents.get(index, ())
            if node.dependencies[0] not in indexes
        }
        return [found[index] for index in sorted(found)]

    def count_descendants(self, members: Sequence[NodeRow]) -> int:
        """How many nodes stand below these, at any depth."""
        open_, count = [member.index for member in members], 0
        while open_:
            below = self.children.get(open_.pop(), ())
            count += len(below)
            open_ += [node.index for node in below]
        return count

    def layers(self) -> list[list[NodeRow]]:
        """A node is one layer below the deepest that it waits for."""
        depth: dict[int, int] = {}
        missing = {node.index: len(node.dependencies) for node in self.nodes.values()}
        ready = deque(node.index for node in self.roots)
        while ready:
            index = ready.popleft()
            depth[index] = max((depth[each] + 1 for each in self.nodes[index].dependencies), default=0)
            for node in self.dependents.get(index, ()):
                missing[node.index] -= 1
                if not missing[node.index]:
                    ready.append(node.index)
        found: list[list[NodeRow]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for index in sorted(depth):
            found[depth[index]].append(self.nodes[index])
        return found

    def failed_subgraph(self) -> RunGraph:
        """What failed or was skipped, and what stands above that."""
        kept: set[int] = set()
        for node in self.nodes.values():
            index = node.index
            while node.status in FAILED_OR_SKIPPED and index not in kept:
                kept.add(index)
                above = self.nodes[index].dependencies
                index = above[0] if above else index
        return RunGraph({index: node for index, node in self.nodes.items() if index in kept})

    def skip_reason(self, node: NodeRow) -> str:
        """The failure at the beginning of it; where there is none, the run ended."""
        cause: NodeRow | None = node
        while cause is not None and cause.status != WorkflowTaskStatus.FAILED:
            above = [self.nodes[index] for index in cause.dependencies if index in self.nodes]
            cause = next((each for each in above if each.status in FAILED_OR_SKIPPED), None)
        return "the run ended" if cause is None else f"[{cause.index}] failed"


# What is said of the nodes of a run.

MAX_DEPENDENCIES_NAMED: Final = 4
"""So many dependencies are named; of more the number is."""

NODE_GLYPHS: Final[Mapping[str, Callable[[Glyphs], str]]] = {
    WorkflowTaskStatus.PENDING: lambda signs: signs.waiting,
    WorkflowTaskStatus.READY: lambda signs: signs.waiting,
    WorkflowTaskStatus.ENQUEUED: lambda signs: signs.queued,
    WorkflowTaskStatus.RUNNING: lambda signs: signs.running,
    WorkflowTaskStatus.COMPLETED: lambda signs: signs.done,
    WorkflowTaskStatus.FAILED: lambda signs: signs.failed,
    WorkflowTaskStatus.SKIPPED: lambda signs: signs.skipped,
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


def legend(glyphs: Glyphs) -> str:
    """What the signs mean."""
    meanings = {
        glyphs.done: "done",
        glyphs.failed: "failed",
        glyphs.running: "running",
        glyphs.queued: "queued",
        glyphs.waiting: "waiting",
        glyphs.skipped: "skipped",
        glyphs.output: "output",
    }
    return "  ".join(f"{sign} {meaning}" for sign, meaning in meanings.items())


def node_text(nodes: Sequence[NodeRow], detail: WorkflowDetail, glyphs: Glyphs) -> str:
    """A node, or how many of them are alike, and what it waits for."""
    first = nodes[0]
    sign = NODE_GLYPHS[first.status](glyphs)
    if len(nodes) > 1:
        return f"{sign} ×{len(nodes)} {first.name}"
    star = f" {glyphs.output}" if first.index == detail.run.output_index else ""
    return f"{sign} [{first.index}] {_node_name(first)}{star}{_child_run_text(first, detail)}{_join_text(first)}"


def _node_name(node: NodeRow) -> str:
    """What it runs, after its own id where that says more."""
    is_plain = node.node_id in (node.name, default_node_id(node.name, node.index))
    return node.name if is_plain else f"{node.node_id} ({node.name})"


def _child_run_text(node: NodeRow, detail: WorkflowDetail) -> str:
    child = detail.sub_workflows.get(node.sub_workflow_id) if node.sub_workflow_id else None
    if child is None:
        return "  workflow" if node.is_subworkflow else ""
    return f"  workflow {child.done}/{child.total}"


def _join_text(node: NodeRow) -> str:
    """What it waits for, where that is more than one."""
    count = len(node.dependencies)
    if count < 2:
        return ""
    named = ",".join(map(str, node.dependencies)) if count <= MAX_DEPENDENCIES_NAMED else f"{count}"
    return f"  quorum {node.min_success} of {count}" if node.join == JoinType.QUORUM else f"  {node.join} of {named}"


def node_note(nodes: Sequence[NodeRow], detail: WorkflowDetail, graph: RunGraph) -> str:
    """What there is to say of how it went, or of why it has not begun; of running ones the list tells the time."""
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
    """What it waits for; where that is more than one, how far they have come."""
    if len(node.dependencies) == 1:
        return f"waits for [{node.dependencies[0]}]"
    counts = Counter(graph.nodes[index].status for index in node.dependencies if index in graph.nodes)
    have, lost = counts[WorkflowTaskStatus.COMPLETED], sum(counts[status] for status in FAILED_OR_SKIPPED)
    parts = {"have": have, "failed": lost, "waiting": len(node.dependencies) - have - lost}
    return ", ".join(f"{word} {count}" for word, count in parts.items() if count)


# The lines that a run is drawn with: as a tree, or layer by layer.

MAX_SIMILAR_SIBLINGS: Final = 20
"""So many siblings of one name and state are drawn one by one; more are one line."""

MAX_POINTERS: Final = 4
MAX_INDENT_LEVELS: Final = 12
"""From how many levels on lines move no further to the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """How a run is looked at."""

    shows_layers: bool = False
    shows_only_failed: bool = False
    folded: frozenset[Hashable] = frozenset()
    expanded: frozenset[Hashable] = frozenset()
    """Of those that are alike, the groups that are drawn one by one after all."""

    def fold(self, line: NodeLine) -> GraphView:
        return replace(self, folded=self.folded | {line.key})

    def unfold(self, line: NodeLine) -> GraphView:
        """Show what is below the line, or what the line stands for."""
        if line.key in self.folded:
            return replace(self, folded=self.folded - {line.key})
        return replace(self, expanded=self.expanded | {line.key}) if len(line.nodes) > 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node, or several that are alike, or a hint where a node stands."""

    key: Hashable
    parent_key: Hashable | None
    """The line under which this one stands."""
    nodes: tuple[NodeRow, ...]
    indent: str
    text: str
    note: str
    status: str
    has_children: bool = False
    is_pointer: bool = False


GraphLine: TypeAlias = NodeLine | Heading


def graph_lines(detail: WorkflowDetail, view: GraphView, glyphs: Glyphs) -> tuple[GraphLine, ...]:
    """What is drawn of the run."""
    graph = RunGraph.of(detail.nodes)
    shown = graph.failed_subgraph() if view.shows_only_failed else graph
    drawing = _GraphDrawing(detail, graph, shown, view, glyphs)
    return tuple(drawing.layers() if view.shows_layers else drawing.tree())


@dataclass(frozen=True, slots=True)
class _TreeItem:
    """What becomes a line: where it hangs, and what it stands for."""

    key: Hashable
    parent_key: Hashable | None
    nodes: tuple[NodeRow, ...]
    is_pointer: bool = False


@dataclass(frozen=True, slots=True)
class _GraphDrawing:
    detail: WorkflowDetail
    graph: RunGraph
    """All nodes: reasons are found among them."""
    shown: RunGraph
    view: GraphView
    glyphs: Glyphs

    def tree(self) -> Iterator[NodeLine]:
        # What is still to be drawn, the next line last: a chain may be longer than the stack is deep.
        waiting = self._with_branches(self._group_similar(self.shown.roots, above=None), "")
        while waiting:
            item, before, bend = waiting.pop()
            line = self._line(item, before + bend)
            yield line
            if line.has_children and item.key not in self.view.folded and not item.is_pointer:
                trunk = "   " if bend == self.glyphs.last_branch else f"{self.glyphs.trunk}  "
                waiting += self._with_branches(
                    self._child_items(item), before + trunk if len(before) < 3 * MAX_INDENT_LEVELS else before
                )

    def layers(self) -> Iterator[GraphLine]:
        for depth, nodes in enumerate(self.shown.layers()):
            counts = Counter(node.status for node in nodes)
            states = "  ".join(
                f"{NODE_GLYPHS[status](self.glyphs)} {count}" for status, count in sorted(counts.items())
            )
            yield Heading(f"layer {depth}   {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}   {states}")
            for item in self._group_similar(nodes, above=("layer", depth)):
                yield replace(self._line(item, ""), has_children=False)

    def _with_branches(self, items: Sequence[_TreeItem], before: str) -> list[tuple[_TreeItem, str, str]]:
        """Items under one line, the last of them first and with the bend that ends a branch."""
        bends = [self.glyphs.branch] * (len(items) - 1) + [self.glyphs.last_branch]
        return [(item, before, bend) for item, bend in zip(items, bends, strict=False)][::-1]

    def _child_items(self, item: _TreeItem) -> list[_TreeItem]:
        children = [node for member in item.nodes for node in self.shown.children.get(member.index, ())]
        pointed_to = self.shown.other_dependents(item.nodes)
        children.sort(key=lambda node: node.index)
        return [*self._group_similar(children, above=item.key), *_pointers(pointed_to, item.key)]

    def _group_similar(self, nodes: Sequence[NodeRow], *, above: Hashable | None) -> list[_TreeItem]:
        """An item for each node, but one for many siblings of one name and state."""
        counts = Counter((node.name, node.status) for node in nodes)
        groups: dict[Hashable, list[NodeRow]] = {}
        for node in nodes:
            kind = (node.name, node.status)
            group = ("alike", above, *kind)
            is_one = counts[kind] > MAX_SIMILAR_SIBLINGS and group not in self.view.expanded
            groups.setdefault(group if is_one else node.index, []).append(node)
        return [_TreeItem(key, above, tuple(members)) for key, members in groups.items()]

    def _line(self, item: _TreeItem, indent: str) -> NodeLine:
        first = item.nodes[0]
        if item.is_pointer:
            indexes = ", ".join(f"[{node.index}]" for node in item.nodes[:MAX_POINTERS])
            more = f" and {len(item.nodes) - MAX_POINTERS} more" if len(item.nodes) > MAX_POINTERS else ""
            return NodeLine(
                key=item.key,
                parent_key=item.parent_key,
                nodes=item.nodes,
                indent=indent,
                note="",
                status=first.status,
                text=f"{self.glyphs.pointer} see {indexes}{more}",
                is_pointer=True,
            )
        is_folded = item.key in self.view.folded
        hidden = f"  ({self.shown.count_descendants(item.nodes)} below)" if is_folded else ""
        has_below = any(member.index in self.shown.dependents for member in item.nodes)
        return NodeLine(
            key=item.key,
            parent_key=item.parent_key,
            nodes=item.nodes,
            indent=indent,
            text=node_text(item.nodes, self.detail, self.glyphs) + hidden,
            note=node_note(item.nodes, self.detail, self.graph),
            status=first.status,
            has_children=has_below,
        )


def _pointers(nodes: Sequence[NodeRow], above: Hashable) -> list[_TreeItem]:
    """Hints where nodes stand that wait for this one too; many of them share a line."""
    if len(nodes) > MAX_POINTERS:
        return [_TreeItem(("see", above), above, tuple(nodes), is_pointer=True)]
    return [_TreeItem(("see", above, node.index), above, (node,), is_pointer=True) for node in nodes]
