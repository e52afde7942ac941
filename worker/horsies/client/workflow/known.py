"""The workflow definitions of one app, as its workers build sub-workflows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from horsies.client.workflow.imported import DEFINITIONS
from horsies.client.workflow.nodes import TaskNode
from horsies.client.workflow.parameters import builder_codec
from horsies.client.workflow.placement import ForeignTask
from horsies.client.workflow.spec import WorkflowSpec
from horsies.codec.wire import canonical
from horsies.errors import HorsiesError
from horsies.registry.injection import decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from horsies.client.task_function import Host, TaskFunction
    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.codec.value import Value
    from horsies.model.workflow.plan import WorkflowPlan


@dataclass(frozen=True, slots=True)
class AppDefinitions:
    """Builds the definitions whose tasks are this app's; those of another app in the same process are unknown to it."""

    app: Host
    ok_of: Callable[[str], Value | None]

    def known(self) -> list[type[WorkflowDefinition[Any]]]:
        return [each for each in DEFINITIONS.all() if self.is_ours(each)]

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        definition = DEFINITIONS.find(definition_key)
        if definition is None or not self.is_ours(definition):
            return None
        call = decoded(
            builder_codec(definition), "[]", _json(kwargs), _json(injected) if injected else None, ok_of=self.ok_of
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
        return spec if spec.host is self.app else None

    def is_ours(self, definition: type[WorkflowDefinition[Any]]) -> bool:
        """Whether no task in it, or in what it contains, is another app's."""
        return all(task.host is self.app for task in _tasks_in(definition, set()))


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
    return canonical(cast("Any", dict(document)))
