"""Workflows written as classes, so that they can be found by their key and be nodes of other workflows."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from horsies.client.workflow.imported import DEFINITIONS
from horsies.client.workflow.nodes import SubWorkflowNode, TaskNode
from horsies.client.workflow.spec import WorkflowSpec
from horsies.errors import ErrorCode, SourceLocation, WorkflowValidationError
from horsies.model.workflow.plan import OnError

if TYPE_CHECKING:
    from horsies.client.task_function import Host
    from horsies.client.workflow.nodes import AnyNode

T = TypeVar("T")


class WorkflowDefinition(Generic[T]):
    """A workflow as a class: its attributes are the nodes, and their names the ids of the nodes that were given none.

    `T` is the type of the value that it ends with. A class inside it called `Meta` may say `output`, `on_error` and
    `success_policy`, where `NodeKey` names a node. One whose graph depends on parameters overrides `build_with`.
    """

    name: ClassVar[str]
    definition_key: ClassVar[str]
    __declared_type__: ClassVar[object] = Any
    __location__: ClassVar[SourceLocation | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__declared_type__ = _declared_type(cls)
        cls.__location__ = SourceLocation.of_caller()
        for attribute, node in cls.get_workflow_nodes().items():
            node.node_id = node.own_id or attribute
        DEFINITIONS.add(cls)

    @classmethod
    def get_workflow_nodes(cls) -> dict[str, AnyNode]:
        """The nodes by attribute, in the order in which they are written, inherited ones first."""
        attributes: dict[str, object] = {}
        for each in reversed(cls.__mro__):
            attributes.update(vars(each))
        return {name: value for name, value in attributes.items() if isinstance(value, TaskNode | SubWorkflowNode)}

    @classmethod
    def build(cls, app: Host) -> WorkflowSpec[T]:
        """A fresh spec of the nodes that the class names."""
        meta = getattr(cls, "Meta", None)
        return WorkflowSpec(
            getattr(cls, "name", ""),
            list(cls.get_workflow_nodes().values()),
            getattr(meta, "on_error", OnError.FAIL),
            getattr(meta, "output", None),
            getattr(meta, "success_policy", None),
            getattr(cls, "definition_key", None),
            app=app,
            declared=cls.__declared_type__,
            location=cls.__location__,
        )

    @classmethod
    def build_with(cls, app: Host, *args: Any, **params: Any) -> WorkflowSpec[T]:
        """A fresh spec for these parameters, which the arguments of a `SubWorkflowNode` provide, by name."""
        if args or params:
            raise WorkflowValidationError(
                f"workflow definition {cls.__qualname__} takes no parameters",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
                hint="override the class method build_with(cls, app, ...)",
                location=cls.__location__,
            )
        return cls.build(app)

    @classmethod
    def is_parametrised(cls) -> bool:
        """Whether it has a `build_with` of its own."""
        return cls.build_with.__func__ is not WorkflowDefinition.build_with.__func__


def _declared_type(definition: type[WorkflowDefinition[Any]]) -> object:
    """The T of `class Report(WorkflowDefinition[T])`; without one, what its base declares."""
    for base in vars(definition).get("__orig_bases__", ()):
        if typing.get_origin(base) is WorkflowDefinition:
            declared = typing.get_args(base)[0]
            return Any if isinstance(declared, TypeVar | typing.ForwardRef) else declared
    return definition.__declared_type__
