"""A run as a graph: which node stands below which, in which layer each is, and why one was skipped."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from horsies.model.workflow.status import WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horsies_ops.reads.workflows import NodeRow

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
