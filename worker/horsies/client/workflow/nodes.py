"""The nodes of a workflow, as their author writes them down."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, cast

from pydantic import JsonValue

from horsies.codec.values import codec_for
from horsies.errors import ErrorCode, SourceLocation, WorkflowValidationError
from horsies.model.task_result import TaskError, TaskResult
from horsies.model.workflow.plan import (
    JoinType,
    NodeKey,
    NodeRef,
    ValueLoader,
    WorkflowContextMissingIdError,
    default_node_id,
)

if TYPE_CHECKING:
    from horsies.client.task import TaskFunction
    from horsies.client.workflow.definition import WorkflowDefinition


# What a workflow definition says of the value it ends with.


def output_node(definition: type[WorkflowDefinition[Any]]) -> AnyNode | None:
    """The node that `Meta.output` is or names."""
    output = getattr(getattr(definition, "Meta", None), "output", None)
    if not isinstance(output, NodeKey):
        return output
    return next((each for each in definition.get_workflow_nodes().values() if each.node_id == output.node_id), None)


def ok_type_of(definition: type[WorkflowDefinition[Any]]) -> object:
    """The declared type, or that of its output node; Any where each run decides."""
    declared, output = definition.__declared_type__, output_node(definition)
    return output.ok_type if declared is Any and output is not None else declared


def result_codec_of(definition: type[WorkflowDefinition[Any]]) -> ValueLoader | None:
    """How the output of a sub-workflow is read; None for plain JSON."""
    found = ok_type_of(definition)
    return None if found is Any else codec_for(found)


def is_assignable(source: object, target: object) -> bool:
    """Whether every value of the type `source` may stand where `target` is declared, as far as that can be told."""
    if source == target or source is Any or target in (Any, object, JsonValue):
        return True
    if typing.get_origin(target) is Annotated or typing.get_origin(source) is Annotated:
        return is_assignable(_bare(source), _bare(target))
    if _is_union(source):
        return all(is_assignable(each, target) for each in typing.get_args(source))
    if _is_union(target):
        return any(is_assignable(source, each) for each in typing.get_args(target))
    return isinstance(source, type) and isinstance(target, type) and issubclass(source, target)


def type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _bare(annotation: object) -> object:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


T = TypeVar("T")

Join: TypeAlias = JoinType | Literal["all", "any", "quorum"]


class Node(Generic[T]):
    """What both kinds of node have in common.

    A node belongs to its author until a spec takes it: the spec keeps a copy that cannot be changed, and tells the
    node which index and id it got there. So a node may be part of several specs, and tells of the newest.
    """

    kwargs: Mapping[str, Any]
    waits_for: Sequence[AnyNode]
    args_from: Mapping[str, AnyNode]
    workflow_ctx_from: Sequence[AnyNode] | None
    join: Join
    min_success: int | None
    allow_failed_deps: bool
    node_id: str | None
    index: int | None = None
    _is_frozen = False
    _assigned_id: str | None = None

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def ok_type(self) -> object:
        """The type of its ok value; Any where nothing is known."""
        raise NotImplementedError

    @property
    def result_codec(self) -> ValueLoader | None:
        """How its ok value is read; None where that is not known."""
        raise NotImplementedError

    @property
    def explicit_id(self) -> str | None:
        """The id that its author gave it."""
        return None if self.node_id == self._assigned_id else self.node_id

    def key(self) -> NodeKey[T]:
        """Its name in `result_for`; `WorkflowContextMissingIdError` before it has one."""
        if self.node_id is None:
            raise WorkflowContextMissingIdError(self.name)
        return NodeKey(self.node_id, self.result_codec)

    def id_at_index(self, index: int) -> str:
        """The id that it has in a spec where it stands at this index."""
        return default_node_id(self.name, index) if self.explicit_id is None else self.explicit_id

    def assign_index(self, index: int) -> None:
        """Take note of the place in a spec."""
        node_id = self.id_at_index(index)
        self._assigned_id = node_id if self.explicit_id is None else None
        self.index, self.node_id = index, node_id

    def frozen_copy(self, index: int) -> Self:
        """A node like this one, in its place, that nobody can change any more."""
        twin = copy.copy(self)
        twin.assign_index(index)
        twin.kwargs, twin.args_from = MappingProxyType(dict(self.kwargs)), MappingProxyType(dict(self.args_from))
        twin.waits_for = tuple(self.waits_for)
        twin.workflow_ctx_from = None if self.workflow_ctx_from is None else tuple(self.workflow_ctx_from)
        twin._is_frozen = True  # noqa: SLF001  # one of its own kind
        return twin

    def __setattr__(self, attribute: str, value: object) -> None:
        if self._is_frozen:
            raise FrozenInstanceError(f"node {self.node_id!r} is part of a workflow; {attribute} stays as it is")
        super().__setattr__(attribute, value)

    def _resolve_from_node(self) -> None:
        """Let each `from_node(x)` among the arguments mean that the result of x is waited for and passed on."""
        for given in (self.kwargs, self.args_from):
            if not isinstance(cast("object", given), Mapping):
                raise WorkflowValidationError(
                    f"node of {self.name!r}: arguments are a mapping by name, not {type(given).__qualname__}",
                    code=ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
                    location=SourceLocation.of_caller(),
                )
        marked = {key: value.node for key, value in self.kwargs.items() if isinstance(value, FromNode)}
        adopted = {key: node for key, node in marked.items() if key not in self.args_from}
        self.kwargs = {key: value for key, value in self.kwargs.items() if key not in adopted}
        self.args_from = {**self.args_from, **adopted}
        unknown = {id(node): node for node in adopted.values() if not any(node is each for each in self.waits_for)}
        self.waits_for = [*self.waits_for, *unknown.values()]


@dataclass(eq=False)
class TaskNode(Node[T]):
    """One run of a task inside a workflow."""

    fn: TaskFunction[..., T]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waits_for: Sequence[AnyNode] = ()
    args_from: Mapping[str, AnyNode] = field(default_factory=dict[str, "AnyNode"])
    workflow_ctx_from: Sequence[AnyNode] | None = None
    queue: str | None = None
    priority: int | None = None
    allow_failed_deps: bool = False
    join: Join = "all"
    min_success: int | None = None
    good_until: datetime | None = None
    node_id: str | None = None

    def __post_init__(self) -> None:
        self._resolve_from_node()

    @property
    def name(self) -> str:
        return self.fn.task_name

    @property
    def ok_type(self) -> object:
        return self.fn.task_ok_type

    @property
    def result_codec(self) -> ValueLoader | None:
        return self.fn.definition.codec.result_codec


@dataclass(eq=False)
class SubWorkflowNode(Node[T]):
    """A whole workflow as one node of another; its tasks have queues, it has none."""

    workflow_def: type[WorkflowDefinition[T]]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waits_for: Sequence[AnyNode] = ()
    args_from: Mapping[str, AnyNode] = field(default_factory=dict[str, "AnyNode"])
    workflow_ctx_from: Sequence[AnyNode] | None = None
    join: Join = "all"
    min_success: int | None = None
    allow_failed_deps: bool = False
    node_id: str | None = None

    def __post_init__(self) -> None:
        self._resolve_from_node()

    @property
    def name(self) -> str:
        return getattr(self.workflow_def, "name", "") or self.workflow_def.__qualname__

    @property
    def ok_type(self) -> object:
        return ok_type_of(self.workflow_def)

    @property
    def result_codec(self) -> ValueLoader | None:
        return result_codec_of(self.workflow_def)


AnyNode: TypeAlias = TaskNode[Any] | SubWorkflowNode[Any]


@dataclass(frozen=True, slots=True)
class FromNode:
    """Stands among the arguments of a node for the result of another one."""

    node: AnyNode


def from_node(node: NodeRef[T]) -> TaskResult[T, TaskError]:
    """Pass the result of `node` as this argument, and wait for it. To a checker it is that result already."""
    return cast("TaskResult[T, TaskError]", FromNode(cast("AnyNode", node)))


class NodeSettings(TypedDict, total=False):
    """What `task.node` takes beside `args_from`."""

    waits_for: Sequence[AnyNode]
    workflow_ctx_from: Sequence[AnyNode] | None
    queue: str | None
    priority: int | None
    allow_failed_deps: bool
    join: Join
    min_success: int | None
    good_until: datetime | None
    node_id: str | None


# What `task.node(...)` returns: called with the arguments of the task, it makes the node.

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class NodeFactory(Generic[P, T]):
    """Takes the arguments of the task, all by name; a checker sees the signature of the task."""

    fn: TaskFunction[P, T]
    settings: NodeSettings

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        _refuse_positional(self.fn.task_name, args)
        return TaskNode(self.fn, kwargs, **self.settings)


@dataclass(frozen=True, slots=True)
class ArgsFromNodeFactory(Generic[T]):
    """The same where `args_from` provides some of them, so that a checker cannot tell which are missing."""

    fn: TaskFunction[..., T]
    args_from: Mapping[str, AnyNode]
    settings: NodeSettings

    def __call__(self, /, *args: Any, **kwargs: Any) -> TaskNode[T]:
        _refuse_positional(self.fn.task_name, args)
        return TaskNode(self.fn, kwargs, args_from=self.args_from, **self.settings)


def _refuse_positional(task_name: str, args: tuple[object, ...]) -> None:
    if args:
        raise WorkflowValidationError(
            f"node of task {task_name!r}: {len(args)} arguments given by position",
            code=ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED,
            hint="arguments of a node are given by name",
            location=SourceLocation.of_caller(),
        )


# When a workflow counts as a success though some of its nodes failed.


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """Satisfied when every required node is COMPLETED; a skipped one is not."""

    required: Sequence[AnyNode | NodeKey[Any]]


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """The run is COMPLETED when one case or more is satisfied; `optional` names nodes whose failure is expected."""

    cases: Sequence[SuccessCase]
    optional: Sequence[AnyNode | NodeKey[Any]] | None = None
