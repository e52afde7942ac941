"""Workflow nodes, their factories, and success policies."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

from pydantic import JsonValue

from horsies.codec.results import InjectedCodec
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
from horsies.model.workflow.views import CONTEXT_PARAMETER

if TYPE_CHECKING:
    from horsies.client.task import TaskFunction
    from horsies.client.workflow.definition import WorkflowDefinition


T = TypeVar("T")

Join: TypeAlias = JoinType | Literal["all", "any", "quorum"]


class Node(Generic[T]):
    """Base class of task nodes and sub-workflow nodes.

    A spec keeps frozen copies of its nodes and assigns index and id to the originals. A node may be part of several
    specs; it then has the index and id of the newest.
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
        """The type of its ok value; Any if unknown."""
        raise NotImplementedError

    @property
    def result_codec(self) -> ValueLoader | None:
        """Decodes its ok value; None if the type is unknown."""
        raise NotImplementedError

    @property
    def explicit_id(self) -> str | None:
        """The id given by the author; None if it was assigned."""
        return None if self.node_id == self._assigned_id else self.node_id

    def key(self) -> NodeKey[T]:
        """The key for `result_for`; raises WorkflowContextMissingIdError if the node has no id yet."""
        if self.node_id is None:
            raise WorkflowContextMissingIdError(self.name)
        return NodeKey(self.node_id, self.result_codec)

    def id_in(self, workflow_name: str, index: int) -> str:
        """The node's id in a workflow of this name that has it at this index."""
        return default_node_id(workflow_name, index) if self.explicit_id is None else self.explicit_id

    def assign_index(self, workflow_name: str, index: int) -> None:
        """Set index and id to those in a workflow."""
        node_id = self.id_in(workflow_name, index)
        self._assigned_id = node_id if self.explicit_id is None else None
        self.index, self.node_id = index, node_id

    def frozen_copy(self, workflow_name: str, index: int) -> Self:
        """An immutable copy, with its index and id in this workflow."""
        frozen = copy.copy(self)  # shallow, because nodes refer to each other by identity
        frozen.assign_index(workflow_name, index)
        frozen.kwargs, frozen.args_from = MappingProxyType(dict(self.kwargs)), MappingProxyType(dict(self.args_from))
        frozen.waits_for = tuple(self.waits_for)
        frozen.workflow_ctx_from = None if self.workflow_ctx_from is None else tuple(self.workflow_ctx_from)
        frozen._is_frozen = True  # noqa: SLF001  # the same class
        return frozen

    def __setattr__(self, attribute: str, value: object) -> None:
        if self._is_frozen:
            raise FrozenInstanceError(f"cannot set {attribute}: node {self.node_id!r} is part of a workflow spec")
        super().__setattr__(attribute, value)

    def _resolve_from_node(self) -> None:
        """Turn each `from_node(x)` in the arguments into an entry of `args_from` and `waits_for`."""
        for arguments in (self.kwargs, self.args_from):
            if not isinstance(cast("object", arguments), Mapping):
                raise WorkflowValidationError(
                    f"node of {self.name!r}: arguments must be a mapping by name, not {type(arguments).__qualname__}",
                    code=ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
                    location=SourceLocation.of_caller(),
                )
        # A parameter in both kwargs and args_from stays in both: validation reports it.
        sources = {
            name: value.node
            for name, value in self.kwargs.items()
            if isinstance(value, FromNode) and name not in self.args_from
        }
        self.kwargs = {name: value for name, value in self.kwargs.items() if name not in sources}
        self.args_from = {**self.args_from, **sources}
        # By identity: nodes are mutable and compare as objects.
        added = {
            id(node): node for node in sources.values() if not any(node is dependency for dependency in self.waits_for)
        }
        self.waits_for = [*self.waits_for, *added.values()]


@dataclass(eq=False)  # two nodes with equal fields are still two nodes
class TaskNode(Node[T]):
    """A node that runs a task."""

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
    """A node that runs a workflow. It has no queue and priority: the tasks of the workflow have their own."""

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
    """Placeholder among the arguments of a node for the result of another node."""

    node: AnyNode


def from_node(node: NodeRef[T]) -> TaskResult[T, TaskError]:
    """Pass the result of `node` as this argument, and wait for it. Typed as that result for type checkers."""
    return cast("TaskResult[T, TaskError]", FromNode(cast("AnyNode", node)))


class NodeSettings(TypedDict, total=False):
    """The options of `task.node`, apart from `args_from`."""

    waits_for: Sequence[AnyNode]
    workflow_ctx_from: Sequence[AnyNode] | None
    queue: str | None
    priority: int | None
    allow_failed_deps: bool
    join: Join
    min_success: int | None
    good_until: datetime | None
    node_id: str | None


P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class NodeFactory(Generic[P, T]):
    """The value of `task.node(...)`: call it with the task's arguments, by name. Has the signature of the task."""

    fn: TaskFunction[P, T]
    settings: NodeSettings

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        if args:
            _reject_positional(self.fn.task_name, args)
        return TaskNode(self.fn, kwargs, **self.settings)


@dataclass(frozen=True, slots=True)
class ArgsFromNodeFactory(Generic[T]):
    """Like `NodeFactory`, but untyped: `args_from` provides some arguments, so type checkers cannot check the call."""

    fn: TaskFunction[..., T]
    args_from: Mapping[str, AnyNode]
    settings: NodeSettings

    def __call__(self, /, *args: Any, **kwargs: Any) -> TaskNode[T]:
        if args:
            _reject_positional(self.fn.task_name, args)
        return TaskNode(self.fn, kwargs, args_from=self.args_from, **self.settings)


@dataclass(frozen=True, slots=True)
class PartialCall(Generic[T]):
    """The value of `task.s(...)`: a task and some of its arguments, for `chain` and `group`."""

    fn: TaskFunction[..., T]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def node(self, *, after: Sequence[AnyNode] = ()) -> TaskNode[T]:
        """A node that waits for these nodes and takes their results.

        One result goes to the first parameter that is not given. Several go to `**kwargs` as `result_0`, `result_1`, …,
        or to `workflow_ctx`; a task with neither takes none of them.
        """
        codec = self.fn.definition.codec
        signature = codec.signature
        names = [name for name in signature.positional if name in signature.keywords]
        if len(self.args) > len(names):
            _reject_positional(self.fn.task_name, self.args, takes=len(names))
        kwargs = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        codecs = codec.parameter_codecs.items()
        injected = {name for name, parameter in codecs if isinstance(parameter, InjectedCodec)}
        free = [name for name in names if name not in kwargs and name not in injected]
        args_from: dict[str, AnyNode] = {}
        if len(after) == 1 and free:
            args_from = {free[0]: after[0]}
        elif len(after) > 1 and signature.var_keyword is not None:
            args_from = {f"result_{number}": node for number, node in enumerate(after)}
        context = after if after and not args_from and CONTEXT_PARAMETER in injected else None
        return TaskNode(self.fn, kwargs, list(after), args_from=args_from, workflow_ctx_from=context)


def _reject_positional(task_name: str, args: tuple[object, ...], *, takes: int | None = None) -> NoReturn:
    text = f"node of task {task_name!r}: {len(args)} positional argument{'' if len(args) == 1 else 's'}"
    raise WorkflowValidationError(
        text if takes is None else f"{text}, but it takes {takes}",
        code=ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED,
        hint="pass the arguments of a node by name" if takes is None else None,
        location=SourceLocation.of_caller(),
    )


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """Met when every required node is COMPLETED; SKIPPED does not count."""

    required: Sequence[AnyNode | NodeKey[Any]]


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """The run is COMPLETED if at least one case is met; `optional` lists nodes that are expected to fail."""

    cases: Sequence[SuccessCase]
    optional: Sequence[AnyNode | NodeKey[Any]] | None = None


# Types of node results


def output_node(definition: type[WorkflowDefinition[Any]]) -> AnyNode | None:
    """The node given by `Meta.output`, directly or by key."""
    output = getattr(getattr(definition, "Meta", None), "output", None)
    if not isinstance(output, NodeKey):
        return output
    return next((node for node in definition.get_workflow_nodes().values() if node.node_id == output.node_id), None)


def ok_type_of(definition: type[WorkflowDefinition[Any]]) -> object:
    """The declared result type, or that of the output node; Any if only the run determines it."""
    declared, output = definition.__declared_type__, output_node(definition)
    return output.ok_type if declared is Any and output is not None else declared


def result_codec_of(definition: type[WorkflowDefinition[Any]]) -> ValueLoader | None:
    """Decodes the result of a sub-workflow; None for plain JSON."""
    ok_type = ok_type_of(definition)
    return None if ok_type is Any else codec_for(ok_type)


def is_assignable(source: object, target: object) -> bool:
    """Whether type `source` is assignable to `target`, as far as that can be determined at runtime."""
    # An unknown source type is checked when the value is decoded; every stored value is a JsonValue.
    if source == target or source is Any or target in (Any, object, JsonValue):
        return True
    if typing.get_origin(target) is Annotated or typing.get_origin(source) is Annotated:
        return is_assignable(_strip_annotated(source), _strip_annotated(target))
    if _is_union(source):
        return all(is_assignable(member, target) for member in typing.get_args(source))
    if _is_union(target):
        return any(is_assignable(source, member) for member in typing.get_args(target))
    return isinstance(source, type) and isinstance(target, type) and issubclass(source, target)


def type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _strip_annotated(annotation: object) -> object:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
