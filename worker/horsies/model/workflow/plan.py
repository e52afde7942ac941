"""A workflow as it is started: every name resolved, every argument in stored form, nodes known by their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from typing_extensions import TypeVar

from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies.model.result import JsonValue


class JoinType(StrEnum):
    """How many of its dependencies a node needs."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"


class OnError(StrEnum):
    """What becomes of a run when one of its nodes fails: other branches go on, or everything waits for a person."""

    FAIL = "fail"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node. A sub-workflow has a `definition_key` and neither queue nor priority; its `name` is the workflow's."""

    index: int
    node_id: str
    name: str
    kwargs_json: str = "{}"
    queue_name: str | None = None
    priority: int | None = None
    dependencies: tuple[int, ...] = ()
    """Indexes of the nodes it waits for, ascending, each once."""
    args_from: Mapping[str, int] = field(default_factory=dict[str, int])
    """Parameters that get the whole result of a dependency."""
    ctx_from: tuple[str, ...] | None = None
    """Ids of the dependencies whose results stand in `workflow_ctx`; None where the node asks for none."""
    allow_failed_deps: bool = False
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    """Given for a quorum, and only there."""
    good_until: datetime | None = None
    options_json: str = "{}"
    """The `task_options` of the backing task, canonical JSON, with the task's flags beside them under `flags`."""
    max_retries: int = 0
    is_subworkflow: bool = False
    definition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule:
    """A run is a success when all nodes of one case are COMPLETED; `optional` names those whose failure is expected."""

    cases: tuple[tuple[int, ...], ...]
    optional: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPlan:
    """A run to be; `nodes` stand at their indexes."""

    name: str
    definition_key: str
    on_error: OnError
    nodes: tuple[NodePlan, ...]
    output_index: int | None = None
    success_rule: SuccessRule | None = None


class WorkflowDefinitions(Protocol):
    """The workflow definitions that a process knows."""

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        """The plan of a sub-workflow; None where the key is unknown here, and whatever the definition raises.

        `kwargs` are the node's stored ones as plain JSON. `injected` has the form of a backing task's `context`:
        `{"args_from": {parameter: result document}, "workflow_ctx": {node id: {"result": document, "task_name": name,
        "summary": document}}, "workflow_meta": {"workflow_id", "task_index", "task_name"}}`, each part where there is
        one. `task_name` lets a child read a result as its task declares it; `summary` is that of a sub-workflow.
        """
        ...


# What nodes are called.

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


class ValueLoader(Protocol):
    """How the value of a stored result becomes a typed one."""

    def load(self, stored: JsonValue) -> object: ...


@dataclass(frozen=True)  # with slots, NodeKey[int]("a") fails in Python 3.11
class NodeKey(Generic[T_co]):
    """Names a node where the node itself is not at hand."""

    node_id: str
    result_codec: ValueLoader | None = field(default=None, repr=False, compare=False)
    """Known where the key was taken from a node."""

    def key(self) -> NodeKey[T_co]:
        return self


class NodeRef(Protocol[T_co]):
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


# Finding what waits for itself.

V = TypeVar("V", bound="Hashable")


def find_cycle(starts: Iterable[V], following: Callable[[V], Iterable[V]]) -> list[V] | None:
    """A way that leads back to where it began, or None; walks without recursion, so that no chain is too long."""
    done: set[V] = set()
    for start in starts:
        way: dict[V, Iterator[V]] = {} if start in done else {start: iter(following(start))}
        while way:
            last = next(reversed(way))
            step = next((each for each in way[last] if each not in done), None)
            if step is None:
                done.add(last)
                del way[last]
            elif step in way:
                passed = list(way)
                return [*passed[passed.index(step) :], step]
            else:
                way[step] = iter(following(step))
    return None


# Where a run and each of its nodes stand.


class WorkflowStatus(StrEnum):
    """The state of a run; the last four are final, but for `retry_failed`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in WORKFLOW_TERMINAL_STATES


class WorkflowTaskStatus(StrEnum):
    """The state of a node; the last three are final."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        return self in WORKFLOW_TASK_TERMINAL_STATES


WORKFLOW_TERMINAL_STATES: Final = frozenset(
    {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED}
)
WORKFLOW_TASK_TERMINAL_STATES: Final = frozenset(
    {WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}
)
