"""Workflow plans: a workflow ready to be stored, with names resolved, arguments encoded and nodes identified by index.

Also node ids, cycle detection, and the statuses of runs and nodes.
"""

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
    from pydantic import JsonValue


class WorkflowStatus(StrEnum):
    """The status of a run; the last four are terminal, but `retry_failed` can restart a run."""

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
    """The status of a node; the last three are terminal."""

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


# Plans


class JoinType(StrEnum):
    """How many of its dependencies must succeed before a node starts."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"


class OnError(StrEnum):
    """What a run does when a node fails: continue with the other branches and fail, or pause for an operator."""

    FAIL = "fail"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node; a sub-workflow has a `definition_key`, no queue and no priority, and its `name` is the workflow's."""

    index: int
    node_id: str
    name: str
    kwargs_json: str = "{}"
    queue_name: str | None = None
    priority: int | None = None
    dependencies: tuple[int, ...] = ()
    """Indexes of the nodes it waits for, ascending and unique."""
    args_from: Mapping[str, int] = field(default_factory=dict[str, int])
    """Parameters that receive the `TaskResult` of a dependency, with its index."""
    ctx_from: tuple[str, ...] | None = None
    """Node ids whose results are passed in `workflow_ctx`; None if the node has no context."""
    allow_failed_deps: bool = False
    join: JoinType = JoinType.ALL
    min_success: int | None = None
    """Set for a quorum only."""
    good_until: datetime | None = None
    options_json: str = "{}"
    """The `task_options` of the backing task as canonical JSON, plus the task's flags under `flags`."""
    max_retries: int = 0
    is_subworkflow: bool = False
    definition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRule:
    """A run succeeds if all nodes of one case are COMPLETED; `optional` nodes are expected to fail sometimes."""

    cases: tuple[tuple[int, ...], ...]
    optional: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowPlan:
    """A workflow ready to be stored as a run; `nodes[i]` has index `i`."""

    name: str
    definition_key: str
    on_error: OnError
    nodes: tuple[NodePlan, ...]
    output_index: int | None = None
    success_rule: SuccessRule | None = None


class WorkflowDefinitions(Protocol):
    """The workflow definitions registered in a process."""

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        """Build the plan of a sub-workflow; None if the key is unknown here. Raises what the definition raises.

        `kwargs` are the node's stored arguments as JSON values. `injected` has the form of a backing task's `context`,
        all parts optional: `{"args_from": {parameter: result document}, "workflow_ctx": {node id: {"result": document,
        "task_name": name, "summary": document}}, "workflow_meta": {"workflow_id", "task_index", "task_name"}}`.
        `task_name` is needed to decode a result with its task's declared type; `summary` is set for sub-workflows.
        """
        ...


# Node ids and keys

# `NodeKey("id")` without a type parameter is a NodeKey[Any].
T_co = TypeVar("T_co", covariant=True, default=Any)

LONGEST_NODE_ID = 128

_NODE_ID = re.compile(r"[A-Za-z0-9_\-:.]+")
_OUTSIDE_SLUG = re.compile(r"[^A-Za-z0-9_\-:.]")


class WorkflowContextMissingIdError(HorsiesError):
    """A node was looked up that has no id because it is not part of a workflow built in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"node {name!r} has no id",
            hint="give it a node_id, build its workflow in this process too, or look it up with NodeKey(node_id)",
        )


class ValueLoader(Protocol):
    """Decodes the value of a stored result."""

    def load(self, stored: JsonValue) -> object: ...


@dataclass(frozen=True)  # with slots, NodeKey[int]("a") fails in Python 3.11
class NodeKey(Generic[T_co]):
    """Identifies a node by its id, for code without access to the node itself."""

    node_id: str
    result_codec: ValueLoader | None = field(default=None, repr=False, compare=False)
    """Set if the key was obtained from a node."""

    def key(self) -> NodeKey[T_co]:
        return self


class NodeRef(Protocol[T_co]):
    """A node or its key; the type parameter is the type of its `ok` value."""

    def key(self) -> NodeKey[T_co]: ...


def slugify(text: str) -> str:
    """Convert text for use in a node id: spaces become underscores, invalid characters are dropped; never empty."""
    return _OUTSIDE_SLUG.sub("", text.replace(" ", "_")) or "node"


def is_node_id(text: object) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_NODE_ID and _NODE_ID.fullmatch(text) is not None


def default_node_id(workflow_name: str, index: int) -> str:
    """The id of a node without an explicit one: the name of its workflow, shortened if necessary, and its index."""
    suffix = f":{index}"
    return slugify(str(workflow_name))[: LONGEST_NODE_ID - len(suffix)] + suffix


def is_chosen_node_id(node_id: str, index: int, *, task_name: str, workflow_name: str) -> bool:
    """Whether an id says more than the name of the task: it was neither generated nor equal to that name."""
    # Earlier versions made default ids from the name of the task.
    return node_id not in (task_name, *(default_node_id(name, index) for name in (workflow_name, task_name)))


# Cycle detection

V = TypeVar("V", bound="Hashable")


def find_cycle(starts: Iterable[V], successors: Callable[[V], Iterable[V]]) -> list[V] | None:
    """Return a cycle as a list that starts and ends with the same node, or None."""
    # Depth-first search with an explicit stack: a long chain would exceed the recursion limit.
    done: set[V] = set()
    for start in starts:
        path: dict[V, Iterator[V]] = {} if start in done else {start: iter(successors(start))}
        while path:
            last = next(reversed(path))
            following = next((node for node in path[last] if node not in done), None)
            if following is None:
                done.add(last)
                del path[last]
            elif following in path:
                visited = list(path)
                return [*visited[visited.index(following) :], following]
            else:
                path[following] = iter(successors(following))
    return None
