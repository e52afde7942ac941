"""What can be wrong with the arguments of a node, written down or taken from other nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horsies.client.workflow.declared import fits, type_name
from horsies.client.workflow.nodes import SubWorkflowNode
from horsies.client.workflow.parameters import codec_of
from horsies.codec.upstream import InjectedValue, ResultValue
from horsies.codec.wire import PayloadRefused
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.workflow.context import CONTEXT_PARAMETER, META_PARAMETER
from horsies.model.workflow.plan import JoinType
from horsies.registry.injection import is_injected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.client.workflow.draft import Draft
    from horsies.client.workflow.nodes import AnyNode
    from horsies.codec.task import TaskCodec

    Faults = Iterator[WorkflowValidationError]


def argument_faults(draft: Draft) -> Faults:
    for node in draft.nodes:
        if isinstance(node, SubWorkflowNode) and not node.workflow_def.is_parametrised():
            yield from _unwanted(node)
            continue
        try:
            codec = codec_of(node)
        except WorkflowValidationError as unusable:
            yield unusable
            continue
        yield from _Arguments(draft=draft, node=node, codec=codec).faults()


def _unwanted(node: SubWorkflowNode[Any]) -> Faults:
    if node.kwargs or node.args_from or node.workflow_ctx_from:
        yield WorkflowValidationError(
            f"node {node.node_id!r}: {node.workflow_def.__qualname__} takes no parameters",
            code=ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
            hint="override the class method build_with(cls, app, ...) there",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """The arguments of one node, held against the parameters they are for."""

    draft: Draft
    node: AnyNode
    codec: TaskCodec

    def faults(self) -> Faults:
        yield from self._binding()
        yield from self._values()
        for parameter, source in self.node.args_from.items():
            yield from self._source(parameter, source)
        yield from self._context()

    def _binding(self) -> Faults:
        given = [*self.node.kwargs, *self.node.args_from]
        is_task = not isinstance(self.node, SubWorkflowNode)
        does_not_bind = ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING
        for name in dict.fromkeys(each for each in given if not self._is_parameter(each)):
            yield self._fault(
                f"no parameter {name!r}", ErrorCode.WORKFLOW_INVALID_KWARG_KEY if is_task else does_not_bind
            )
        for name in (each for each in self.codec.shape.required if each not in given and not self._is_injected(each)):
            code = ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS if is_task else does_not_bind
            yield self._fault(f"parameter {name!r} is missing", code)
        for name in self.node.kwargs.keys() & self.node.args_from.keys():
            text = f"parameter {name!r} stands in kwargs and in args_from"
            yield self._fault(text, ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP)

    def _values(self) -> Faults:
        for name in filter(self._is_parameter, self.node.kwargs):
            try:
                self.codec.encode_keywords({name: self.node.kwargs[name]})
            except PayloadRefused as refused:
                yield self._fault(str(refused), ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE)

    def _source(self, parameter: str, source: AnyNode) -> Faults:
        if not self._is_waited_for(source):
            text = f"args_from[{parameter!r}] is not among the nodes it waits for"
            hint = "put it into waits_for, or use from_node"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_ARGS_FROM, hint=hint)
        if self.draft.place_of(source) is None or not self._is_parameter(parameter):
            return
        target = self.codec.values[self.codec.shape.name_of(parameter)]
        if not isinstance(target, ResultValue) or not fits(source.ok_type, target.ok_type):
            text = f"parameter {parameter!r} must be a TaskResult[{type_name(source.ok_type)}, TaskError]"
            yield self._fault(text, ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH)
        if self.node.join != JoinType.ALL and parameter in self.codec.shape.required:
            text = f"parameter {parameter!r} needs a default: with join {str(self.node.join)!r} its source may be open"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_JOIN)

    def _context(self) -> Faults:
        sources = self.node.workflow_ctx_from or ()
        if not all(map(self._is_waited_for, sources)):
            text = "workflow_ctx_from names a node that it does not wait for"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_CTX_FROM, hint="put it into waits_for too")
        if sources and not is_injected(self.codec, CONTEXT_PARAMETER):
            text = f"{self.node.name!r} has no parameter {CONTEXT_PARAMETER}: WorkflowContext | None = None"
            yield self._fault(text, ErrorCode.WORKFLOW_CTX_PARAM_MISSING)

    def _is_waited_for(self, source: object) -> bool:
        return any(source is each for each in self.node.waits_for)

    def _is_parameter(self, name: str) -> bool:
        """Whether the author of a node may fill it."""
        shape = self.codec.shape
        is_known = name in shape.keywords or (shape.extra is not None and isinstance(name, str))
        return is_known and not isinstance(self.codec.values.get(name), InjectedValue)

    def _is_injected(self, name: str) -> bool:
        is_told = name == META_PARAMETER or (name == CONTEXT_PARAMETER and bool(self.node.workflow_ctx_from))
        return is_told and is_injected(self.codec, name)

    def _fault(self, text: str, code: ErrorCode, *, hint: str | None = None) -> WorkflowValidationError:
        return WorkflowValidationError(f"node {self.node.node_id!r}: {text}", code=code, hint=hint)
