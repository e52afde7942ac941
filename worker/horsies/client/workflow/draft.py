"""A workflow on its way from what was written to what can be run: nodes have their places, nothing is checked yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horsies.model.workflow.names import NodeKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.client.task_function import Host
    from horsies.client.workflow.nodes import AnyNode
    from horsies.client.workflow.policies import SuccessPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a spec was given, its nodes copied and numbered; `places` finds a node's index by its identity."""

    name: str
    definition_key: str | None
    nodes: tuple[AnyNode, ...]
    places: Mapping[int, int]
    on_error: object
    output: AnyNode | NodeKey[Any] | None
    success_policy: SuccessPolicy | None
    declared: object
    host: Host | None

    def place_of(self, node: object) -> int | None:
        """The index of a node, or of the node that a key names."""
        if isinstance(node, NodeKey):
            return next((index for index, each in enumerate(self.nodes) if each.node_id == node.node_id), None)
        return self.places.get(id(node))

    def dependencies_of(self, node: AnyNode) -> tuple[int, ...]:
        """The indexes of what it waits for; what is not in the workflow is left out."""
        return tuple(sorted({place for each in node.waits_for if (place := self.place_of(each)) is not None}))

    @property
    def queues(self) -> dict[str, int] | None:
        """The priorities of the app's custom queues; None where it has only its default one."""
        queues = None if self.host is None else self.host.config.custom_queues
        return None if queues is None else {queue.name: queue.priority for queue in queues}
