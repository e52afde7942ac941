"""What `task.node(...)` returns: called with the arguments of the task, it makes the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from horsies.client.workflow.nodes import NodeSettings, TaskNode
from horsies.errors import ErrorCode, SourceLocation, WorkflowValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.client.task_function import TaskFunction
    from horsies.client.workflow.nodes import AnyNode

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeFactory(Generic[P, T]):
    """Takes the arguments of the task, all by name; a checker sees the signature of the task."""

    fn: TaskFunction[P, T]
    settings: NodeSettings

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        _refuse_positional(self.fn.task_name, args)
        return TaskNode(self.fn, kwargs, **self.settings)


@dataclass(frozen=True, slots=True)
class FedNodeFactory(Generic[T]):
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
