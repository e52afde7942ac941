"""A run as a graph: which node stands below which, in which layer each is, and why one was skipped."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from horsies.model.workflow.plan import JoinType, WorkflowTaskStatus, default_node_id
from horsies_tui.format import took
from horsies_tui.widgets.row_list import Heading, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from horsies_ops.reads.workflows import NodeRow, WorkflowDetail
    from horsies_tui.theme import Glyphs


LOST: Final[tuple[str, ...]] = (WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)


# Without slots, which cached properties cannot do with.
@dataclass(frozen=True)
class Graph:
    """Nodes by index. A node stands below the first that it waits for; the others only point to it."""

    nodes: Mapping[int, NodeRow]

    @classmethod
    def of(cls, nodes: Iterable[NodeRow]) -> Graph:
        return cls({node.index: node for node in nodes})

    @cached_property
    def below(self) -> Mapping[int, Sequence[NodeRow]]:
        """Those that stand below a node."""
        found: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            if node.dependencies:
                found.setdefault(node.dependencies[0], []).append(node)
        return found

    @cached_property
    def waiting_for(self) -> Mapping[int, Sequence[NodeRow]]:
        """Those that wait for a node, wherever they stand."""
        found: dict[int, list[NodeRow]] = {}
        for node in self.nodes.values():
            for dependency in node.dependencies:
                found.setdefault(dependency, []).append(node)
        return found

    @property
    def roots(self) -> list[NodeRow]:
        return [node for node in self.nodes.values() if not node.dependencies]

    def pointed_to(self, members: Sequence[NodeRow]) -> list[NodeRow]:
        """Those that wait for one of the members and stand below another node."""
        indexes = {member.index for member in members}
        found = {
            node.index: node
            for index in indexes
            for node in self.waiting_for.get(index, ())
            if node.dependencies[0] not in indexes
        }
        return [found[index] for index in sorted(found)]

    def size_below(self, members: Sequence[NodeRow]) -> int:
        """How many nodes stand below these, at any depth."""
        open_, count = [member.index for member in members], 0
        while open_:
            below = self.below.get(open_.pop(), ())
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
            for node in self.waiting_for.get(index, ()):
                missing[node.index] -= 1
                if not missing[node.index]:
                    ready.append(node.index)
        found: list[list[NodeRow]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for index in sorted(depth):
            found[depth[index]].append(self.nodes[index])
        return found

    def only_lost(self) -> Graph:
        """What failed or was skipped, and what stands above that."""
        kept: set[int] = set()
        for node in self.nodes.values():
            index = node.index
            while node.status in LOST and index not in kept:
                kept.add(index)
                above = self.nodes[index].dependencies
                index = above[0] if above else index
        return Graph({index: node for index, node in self.nodes.items() if index in kept})

    def why_skipped(self, node: NodeRow) -> str:
        """The failure at the beginning of it; where there is none, the run ended."""
        cause: NodeRow | None = node
        while cause is not None and cause.status != WorkflowTaskStatus.FAILED:
            above = [self.nodes[index] for index in cause.dependencies if index in self.nodes]
            cause = next((each for each in above if each.status in LOST), None)
        return "the run ended" if cause is None else f"[{cause.index}] failed"


# What is said of the nodes of a run.

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


# The lines that a run is drawn with: as a tree, or layer by layer.

MOST_ALIKE: Final = 20
"""So many siblings of one name and state are drawn one by one; more are one line."""

MOST_POINTED_TO: Final = 4
DEEPEST: Final = 12
"""From how many levels on lines move no further to the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a run is looked at."""

    is_layers: bool = False
    is_only_lost: bool = False
    folded: frozenset[Hashable] = frozenset()
    opened: frozenset[Hashable] = frozenset()
    """Of those that are alike, the groups that are drawn one by one after all."""

    def fold(self, line: FlowLine) -> View:
        return replace(self, folded=self.folded | {line.key})

    def unfold(self, line: FlowLine) -> View:
        """Show what is below the line, or what the line stands for."""
        if line.key in self.folded:
            return replace(self, folded=self.folded - {line.key})
        return replace(self, opened=self.opened | {line.key}) if len(line.nodes) > 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLine:
    """One node, or several that are alike, or a hint where a node stands."""

    key: Hashable
    above: Hashable | None
    """The line under which this one stands."""
    nodes: tuple[NodeRow, ...]
    indent: str
    text: str
    note: str
    status: str
    has_below: bool = False
    is_pointer: bool = False


Line: TypeAlias = FlowLine | Heading


def lines_of(detail: WorkflowDetail, view: View, signs: Glyphs) -> tuple[Line, ...]:
    """What is drawn of the run."""
    graph = Graph.of(detail.nodes)
    shown = graph.only_lost() if view.is_only_lost else graph
    drawing = _Drawing(detail, graph, shown, view, signs)
    return tuple(drawing.layers() if view.is_layers else drawing.tree())


@dataclass(frozen=True, slots=True)
class _Item:
    """What becomes a line: where it hangs, and what it stands for."""

    key: Hashable
    above: Hashable | None
    nodes: tuple[NodeRow, ...]
    is_pointer: bool = False


@dataclass(frozen=True, slots=True)
class _Drawing:
    detail: WorkflowDetail
    graph: Graph
    """All nodes: reasons are found among them."""
    shown: Graph
    view: View
    signs: Glyphs

    def tree(self) -> Iterator[FlowLine]:
        # What is still to be drawn, the next line last: a chain may be longer than the stack is deep.
        waiting = self._hung(self._alike(self.shown.roots, above=None), "")
        while waiting:
            item, before, bend = waiting.pop()
            line = self._line(item, before + bend)
            yield line
            if line.has_below and item.key not in self.view.folded and not item.is_pointer:
                trunk = "   " if bend == self.signs.last_branch else f"{self.signs.trunk}  "
                waiting += self._hung(self._below(item), before + trunk if len(before) < 3 * DEEPEST else before)

    def layers(self) -> Iterator[Line]:
        for depth, nodes in enumerate(self.shown.layers()):
            counts = Counter(node.status for node in nodes)
            states = "  ".join(f"{SIGNS[status](self.signs)} {count}" for status, count in sorted(counts.items()))
            yield Heading(f"layer {depth}   {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}   {states}")
            for item in self._alike(nodes, above=("layer", depth)):
                yield replace(self._line(item, ""), has_below=False)

    def _hung(self, items: Sequence[_Item], before: str) -> list[tuple[_Item, str, str]]:
        """Items under one line, the last of them first and with the bend that ends a branch."""
        bends = [self.signs.branch] * (len(items) - 1) + [self.signs.last_branch]
        return [(item, before, bend) for item, bend in zip(items, bends, strict=False)][::-1]

    def _below(self, item: _Item) -> list[_Item]:
        children = [node for member in item.nodes for node in self.shown.below.get(member.index, ())]
        pointed_to = self.shown.pointed_to(item.nodes)
        children.sort(key=lambda node: node.index)
        return [*self._alike(children, above=item.key), *_pointers(pointed_to, item.key)]

    def _alike(self, nodes: Sequence[NodeRow], *, above: Hashable | None) -> list[_Item]:
        """An item for each node, but one for many siblings of one name and state."""
        counts = Counter((node.name, node.status) for node in nodes)
        groups: dict[Hashable, list[NodeRow]] = {}
        for node in nodes:
            kind = (node.name, node.status)
            group = ("alike", above, *kind)
            is_one = counts[kind] > MOST_ALIKE and group not in self.view.opened
            groups.setdefault(group if is_one else node.index, []).append(node)
        return [_Item(key, above, tuple(members)) for key, members in groups.items()]

    def _line(self, item: _Item, indent: str) -> FlowLine:
        first = item.nodes[0]
        if item.is_pointer:
            indexes = ", ".join(f"[{node.index}]" for node in item.nodes[:MOST_POINTED_TO])
            more = f" and {len(item.nodes) - MOST_POINTED_TO} more" if len(item.nodes) > MOST_POINTED_TO else ""
            return FlowLine(
                key=item.key, above=item.above, nodes=item.nodes, indent=indent, note="", status=first.status,
                text=f"{self.signs.see} see {indexes}{more}", is_pointer=True,
            )  # fmt: skip
        is_folded = item.key in self.view.folded
        hidden = f"  ({self.shown.size_below(item.nodes)} below)" if is_folded else ""
        has_below = any(member.index in self.shown.waiting_for for member in item.nodes)
        return FlowLine(
            key=item.key, above=item.above, nodes=item.nodes, indent=indent,
            text=said(item.nodes, self.detail, self.signs) + hidden,
            note=noted(item.nodes, self.detail, self.graph), status=first.status, has_below=has_below,
        )  # fmt: skip


def _pointers(nodes: Sequence[NodeRow], above: Hashable) -> list[_Item]:
    """Hints where nodes stand that wait for this one too; many of them share a line."""
    if len(nodes) > MOST_POINTED_TO:
        return [_Item(("see", above), above, tuple(nodes), is_pointer=True)]
    return [_Item(("see", above, node.index), above, (node,), is_pointer=True) for node in nodes]
