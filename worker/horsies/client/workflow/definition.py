"""Workflows written as classes, so that they can be found by their key and be nodes of other workflows."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from horsies.client.task import TaskApp, TaskFunction
from horsies.client.workflow.nodes import AnyNode, SubWorkflowNode, TaskNode
from horsies.client.workflow.spec import WorkflowSpec
from horsies.client.workflow.validation import ForeignTask, build_with_codec
from horsies.codec.canonical_json import canonical_json
from horsies.codec.values import ValueCodec
from horsies.errors import ErrorCode, HorsiesError, SourceLocation, WorkflowValidationError
from horsies.model.workflow.plan import OnError, WorkflowPlan
from horsies.registry.invocation import decode_arguments

# The workflow definitions of this process, by their keys.


class DefinitionRegistry:
    """Every definition that this process has imported; apps come and go, a key means one class."""

    def __init__(self) -> None:
        self._by_key: dict[str, type[WorkflowDefinition[Any]]] = {}
        self._without_key: dict[str, type[WorkflowDefinition[Any]]] = {}

    def add(self, definition: type[WorkflowDefinition[Any]]) -> None:
        """Remember it; the same place in the source, imported again, takes the place of its forerunner."""
        key = getattr(definition, "definition_key", None)
        if not key:
            self._without_key[str(definition.__location__)] = definition
            return
        known = self._by_key.get(key)
        if known is not None and known.__location__ != definition.__location__:
            raise WorkflowValidationError(
                f"definition_key {key!r} is taken",
                code=ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY,
                notes=[f"first defined at {known.__location__}"],
                hint="give each workflow definition a key of its own",
                location=definition.__location__,
            )
        self._by_key[key] = definition

    def find(self, key: str) -> type[WorkflowDefinition[Any]] | None:
        return self._by_key.get(key)

    def all(self) -> list[type[WorkflowDefinition[Any]]]:
        return list(self._by_key.values())

    def without_key(self) -> list[type[WorkflowDefinition[Any]]]:
        """Those that were given none, and have something to run; a mere base for others has not."""
        return [each for each in self._without_key.values() if each.get_workflow_nodes() or each.is_parametrised()]


DEFINITIONS = DefinitionRegistry()


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
            node.node_id = node.explicit_id or attribute
        DEFINITIONS.add(cls)

    @classmethod
    def get_workflow_nodes(cls) -> dict[str, AnyNode]:
        """The nodes by attribute, in the order in which they are written, inherited ones first."""
        attributes: dict[str, object] = {}
        for each in reversed(cls.__mro__):
            attributes.update(vars(each))
        return {name: value for name, value in attributes.items() if isinstance(value, TaskNode | SubWorkflowNode)}

    @classmethod
    def build(cls, app: TaskApp) -> WorkflowSpec[T]:
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
    def build_with(cls, app: TaskApp, *args: Any, **params: Any) -> WorkflowSpec[T]:
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


# The workflow definitions of one app, as its workers build sub-workflows from them.


@dataclass(frozen=True, slots=True)
class AppDefinitions:
    """Builds the definitions whose tasks are this app's; those of another app in the same process are unknown to it."""

    app: TaskApp
    result_codec_for: Callable[[str], ValueCodec | None]

    def known(self) -> list[type[WorkflowDefinition[Any]]]:
        return [each for each in DEFINITIONS.all() if self.belongs_to_app(each)]

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        definition = DEFINITIONS.find(definition_key)
        if definition is None or not self.belongs_to_app(definition):
            return None
        call = decode_arguments(
            build_with_codec(definition),
            "[]",
            _json(kwargs),
            _json(injected) if injected else None,
            result_codec_for=self.result_codec_for,
        )
        spec = self._spec(definition, call.kwargs)
        return None if spec is None else spec.plan()

    def _spec(
        self, definition: type[WorkflowDefinition[Any]], parameters: Mapping[str, Any]
    ) -> WorkflowSpec[Any] | None:
        """What it builds; None where that is of another app's tasks, which a class without nodes shows only now."""
        try:
            spec = definition.build_with(self.app, **parameters)
        except HorsiesError as error:
            if any(isinstance(fault, ForeignTask) for fault in error.faults):
                return None
            raise
        if not isinstance(cast("object", spec), WorkflowSpec):
            raise TypeError(f"{definition.__qualname__}.build_with returned {type(spec).__qualname__}, not a spec")
        return spec if spec.app is self.app else None

    def belongs_to_app(self, definition: type[WorkflowDefinition[Any]]) -> bool:
        """Whether no task in it, or in what it contains, is another app's."""
        return all(task.app is self.app for task in _tasks_in(definition, set()))


def _tasks_in(
    definition: type[WorkflowDefinition[Any]], seen: set[type[WorkflowDefinition[Any]]]
) -> Iterator[TaskFunction[..., Any]]:
    """The tasks at all depths; definitions that contain each other are looked at once."""
    seen.add(definition)
    for node in definition.get_workflow_nodes().values():
        if isinstance(node, TaskNode):
            yield node.fn
        elif node.workflow_def not in seen:
            yield from _tasks_in(node.workflow_def, seen)


def _json(document: Mapping[str, object]) -> str:
    return canonical_json(cast("Any", dict(document)))
