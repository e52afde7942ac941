"""The parameters of a node: those of its task, or those with which its sub-workflow is built."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from horsies.client.workflow.nodes import TaskNode
from horsies.codec.annotations import parameter_value
from horsies.codec.shape import Shape
from horsies.codec.task import TaskCodec
from horsies.codec.value import PlainValue
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.result import Err

if TYPE_CHECKING:
    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.client.workflow.nodes import AnyNode


def codec_of(node: AnyNode) -> TaskCodec:
    """How the arguments of a node are written and read; `WorkflowValidationError` where a definition makes no sense."""
    return node.fn.definition.codec if isinstance(node, TaskNode) else builder_codec(node.workflow_def)


def builder_codec(definition: type[WorkflowDefinition[Any]]) -> TaskCodec:
    """The same for what `build_with` takes beside the app."""
    function = definition.build_with.__func__
    beside_the_app = list(inspect.signature(function).parameters.values())[2:]
    parameters = beside_the_app if definition.is_parametrised() else []
    values = {each.name: parameter_value(function, each) for each in parameters}
    for name, value in values.items():
        if isinstance(value, Err):
            raise WorkflowValidationError(
                f"{definition.__qualname__}.build_with: parameter {name!r}: {value.error.reason}",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
                hint=value.error.hint,
                location=definition.__location__,
            )
    return TaskCodec(
        shape=Shape.of(inspect.Signature(parameters)),
        values={name: value.unwrap() for name, value in values.items()},
        ok=PlainValue(),
    )
