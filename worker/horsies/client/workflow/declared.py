"""What a workflow definition says of the value it ends with."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import JsonValue

from horsies.codec.value import value_of
from horsies.model.workflow.names import NodeKey

if TYPE_CHECKING:
    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.client.workflow.nodes import AnyNode
    from horsies.model.workflow.names import Reads


def output_of(definition: type[WorkflowDefinition[Any]]) -> AnyNode | None:
    """The node that `Meta.output` is or names."""
    output = getattr(getattr(definition, "Meta", None), "output", None)
    if not isinstance(output, NodeKey):
        return output
    return next((each for each in definition.get_workflow_nodes().values() if each.node_id == output.node_id), None)


def ok_type_of(definition: type[WorkflowDefinition[Any]]) -> object:
    """The declared type, or that of its output node; Any where each run decides."""
    declared, output = definition.__declared_type__, output_of(definition)
    return output.ok_type if declared is Any and output is not None else declared


def reads_of(definition: type[WorkflowDefinition[Any]]) -> Reads | None:
    """How the output of a sub-workflow is read; None for plain JSON."""
    found = ok_type_of(definition)
    return None if found is Any else value_of(found)


def fits(source: object, target: object) -> bool:
    """Whether every value of the type `source` may stand where `target` is declared, as far as that can be told."""
    if source == target or source is Any or target in (Any, object, JsonValue):
        return True
    if typing.get_origin(target) is Annotated or typing.get_origin(source) is Annotated:
        return fits(_bare(source), _bare(target))
    if _is_union(source):
        return all(fits(each, target) for each in typing.get_args(source))
    if _is_union(target):
        return any(fits(source, each) for each in typing.get_args(target))
    return isinstance(source, type) and isinstance(target, type) and issubclass(source, target)


def type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _bare(annotation: object) -> object:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)
