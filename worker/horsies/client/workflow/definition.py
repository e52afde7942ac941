"""Workflows defined as classes: registered by key, so that other workflows can use them as nodes."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Generic, TypeVar, cast

from horsies.client.task import TaskApp, TaskFunction
from horsies.client.workflow.nodes import AnyNode, SubWorkflowNode, TaskNode
from horsies.client.workflow.spec import BUILT_DEFINITION_KEY, WorkflowSpec
from horsies.client.workflow.validation import ForeignTask, build_with_codec
from horsies.codec.canonical_json import canonical_json
from horsies.codec.values import ValueCodec
from horsies.errors import ErrorCode, HorsiesError, SourceLocation, WorkflowValidationError
from horsies.model.workflow.plan import OnError, WorkflowPlan
from horsies.registry.invocation import decode_arguments

T = TypeVar("T")


class WorkflowDefinition(Generic[T]):
    """A workflow as a class: its attributes are the nodes, and name those without an explicit id.

    `T` is the type of the run's result. An inner class `Meta` may set `output`, `on_error` and `success_policy`, with
    `NodeKey` to refer to a node. Override `build_with` if the graph depends on parameters.
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
        if "build_with" in vars(cls):
            setattr(cls, "build_with", classmethod(_with_key_of_class(cls.build_with.__func__)))  # noqa: B010
        DEFINITIONS.add(cls)

    @classmethod
    def get_workflow_nodes(cls) -> dict[str, AnyNode]:
        """The nodes by attribute name, in source order, inherited ones first."""
        attributes: dict[str, object] = {}
        for base in reversed(cls.__mro__):  # base classes first, so that a subclass overrides their nodes
            attributes.update(vars(base))
        return {name: value for name, value in attributes.items() if isinstance(value, TaskNode | SubWorkflowNode)}

    @classmethod
    def build(cls, app: TaskApp) -> WorkflowSpec[T]:
        """Build a new spec of the nodes of this class."""
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
        """Build a new spec for these parameters; a `SubWorkflowNode` passes its arguments here, by name."""
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
        """Whether the class overrides `build_with`."""
        return cls.build_with.__func__ is not WorkflowDefinition.build_with.__func__


def _with_key_of_class(build_with: Callable[..., WorkflowSpec[Any]]) -> Callable[..., WorkflowSpec[Any]]:
    """Let the specs that `build_with` makes without a key take the key of its class."""

    @wraps(build_with)
    def build(definition: type[WorkflowDefinition[Any]], *args: Any, **params: Any) -> WorkflowSpec[Any]:
        token = BUILT_DEFINITION_KEY.set(getattr(definition, "definition_key", None))
        try:
            return build_with(definition, *args, **params)
        finally:
            BUILT_DEFINITION_KEY.reset(token)

    return build


def _declared_type(definition: type[WorkflowDefinition[Any]]) -> object:
    """The T of `class Report(WorkflowDefinition[T])`; without one, that of its base class."""
    # Not getattr: a class without type arguments would find the bases of its base class.
    for base in vars(definition).get("__orig_bases__", ()):
        if typing.get_origin(base) is WorkflowDefinition:
            declared = typing.get_args(base)[0]
            return Any if isinstance(declared, TypeVar | typing.ForwardRef) else declared
    return definition.__declared_type__


class DefinitionRegistry:
    """All definitions imported by this process, by key. Shared by its apps."""

    def __init__(self) -> None:
        self._by_key: dict[str, type[WorkflowDefinition[Any]]] = {}
        self._without_key: dict[str, type[WorkflowDefinition[Any]]] = {}

    def add(self, definition: type[WorkflowDefinition[Any]]) -> None:
        """Register a definition; one from the same source location (a reload) replaces the previous one."""
        key = getattr(definition, "definition_key", None)
        if not key:
            self._without_key[str(definition.__location__)] = definition  # by location, so that a reload replaces it
            return
        known = self._by_key.get(key)
        if known is not None and known.__location__ != definition.__location__:
            raise WorkflowValidationError(
                f"duplicate definition_key {key!r}",
                code=ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY,
                notes=[f"first defined at {known.__location__}"],
                hint="give each workflow definition a unique key",
                location=definition.__location__,
            )
        self._by_key[key] = definition

    def find(self, key: str) -> type[WorkflowDefinition[Any]] | None:
        return self._by_key.get(key)

    def all(self) -> list[type[WorkflowDefinition[Any]]]:
        return list(self._by_key.values())

    def without_key(self) -> list[type[WorkflowDefinition[Any]]]:
        """Definitions without a key that could run; abstract base classes are left out."""
        return [
            definition
            for definition in self._without_key.values()
            if definition.get_workflow_nodes() or definition.is_parametrised()
        ]


DEFINITIONS = DefinitionRegistry()


@dataclass(frozen=True, slots=True)
class AppDefinitions:
    """The definitions of one app, from which its workers build sub-workflows. Ignores those of other apps."""

    app: TaskApp
    result_codec_for: Callable[[str], ValueCodec | None]

    def known(self) -> list[type[WorkflowDefinition[Any]]]:
        return [definition for definition in DEFINITIONS.all() if self.belongs_to_app(definition)]

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        """Build the plan of a sub-workflow from stored arguments; None if this app does not know the definition."""
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

    def belongs_to_app(self, definition: type[WorkflowDefinition[Any]]) -> bool:
        """Whether all its tasks, at all depths, belong to this app."""
        return all(task.app is self.app for task in _tasks_in(definition, set()))

    def _spec(
        self, definition: type[WorkflowDefinition[Any]], parameters: Mapping[str, Any]
    ) -> WorkflowSpec[Any] | None:
        """Call `build_with`; None if the spec has tasks of another app, which only the result of `build_with` shows."""
        try:
            spec = definition.build_with(self.app, **parameters)
        except HorsiesError as error:
            if any(isinstance(fault, ForeignTask) for fault in error.faults):
                return None
            raise
        if not isinstance(cast("object", spec), WorkflowSpec):
            raise TypeError(
                f"{definition.__qualname__}.build_with returned {type(spec).__qualname__}, not a WorkflowSpec"
            )
        return spec if spec.app is self.app else None


def _tasks_in(
    definition: type[WorkflowDefinition[Any]], seen: set[type[WorkflowDefinition[Any]]]
) -> Iterator[TaskFunction[..., Any]]:
    """The tasks of a definition at all depths; definitions may contain each other."""
    seen.add(definition)
    for node in definition.get_workflow_nodes().values():
        if isinstance(node, TaskNode):
            yield node.fn
        elif node.workflow_def not in seen:
            yield from _tasks_in(node.workflow_def, seen)


def _json(document: Mapping[str, object]) -> str:
    return canonical_json(cast("Any", dict(document)))
