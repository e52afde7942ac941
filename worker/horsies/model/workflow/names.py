"""What nodes are called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol

from typing_extensions import TypeVar

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies.model.result import JsonValue

# Of a bare `NodeKey("id")` nothing is known.
T_co = TypeVar("T_co", covariant=True, default=Any)

LONGEST_NODE_ID = 128

_NODE_ID = re.compile(r"[A-Za-z0-9_\-:.]+")
_OUTSIDE_SLUG = re.compile(r"[^A-Za-z0-9_\-:.]")


class WorkflowContextMissingIdError(HorsiesError):
    """A node was looked up that has no id, for it was never part of a workflow in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"node {name!r} has no id",
            hint="give it a node_id, build its workflow in this process too, or look it up by NodeKey(node_id)",
        )


class Reads(Protocol):
    """How the value of a stored result becomes a typed one."""

    def load(self, stored: JsonValue) -> object: ...


@dataclass(frozen=True)  # with slots, NodeKey[int]("a") fails in Python 3.11
class NodeKey(Generic[T_co]):
    """Names a node where the node itself is not at hand."""

    node_id: str
    reads: Reads | None = field(default=None, repr=False, compare=False)
    """Known where the key was taken from a node."""

    def key(self) -> NodeKey[T_co]:
        return self


class Keyed(Protocol[T_co]):
    """A node, or its key; T is the type of its ok value."""

    def key(self) -> NodeKey[T_co]: ...


def slugify(text: str) -> str:
    """Text as it may stand in a node id: spaces become underscores, what no id may hold is dropped."""
    return _OUTSIDE_SLUG.sub("", text.replace(" ", "_"))


def is_node_id(text: object) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_NODE_ID and _NODE_ID.fullmatch(text) is not None


def default_node_id(name: str, index: int) -> str:
    """The id of a node that was given none: unique by its place, and short enough however long the name is."""
    place = f":{index}"
    return slugify(name)[: LONGEST_NODE_ID - len(place)] + place
