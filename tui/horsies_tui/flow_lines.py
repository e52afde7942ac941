"""The lines that a run is drawn with: as a tree, or layer by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from horsies_tui.flow_graph import Graph
from horsies_tui.flow_words import SIGNS, noted, said
from horsies_tui.widgets.row_list import Heading

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from horsies_ops.reads.workflows import NodeRow, WorkflowDetail
    from horsies_tui.glyphs import Glyphs

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
