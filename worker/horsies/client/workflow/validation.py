"""What can be wrong with a workflow as a whole: its name, its graph, its joins, what it ends with."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from horsies.client.workflow.nodes import (
    AnyNode,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    is_assignable,
    type_name,
)
from horsies.codec.arguments import CallSignature, TaskCodec, parameter_codec
from horsies.codec.canonical_json import PayloadError
from horsies.codec.results import InjectedCodec, TaskResultCodec
from horsies.codec.values import PlainCodec
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.result import Err
from horsies.model.task import check_good_until, is_priority, queue_fault
from horsies.model.workflow.plan import LONGEST_NODE_ID, JoinType, OnError, find_cycle, is_node_id
from horsies.model.workflow.views import CONTEXT_PARAMETER, META_PARAMETER
from horsies.registry.definition import LONGEST_NAME, is_storable_text
from horsies.registry.invocation import is_injected

if TYPE_CHECKING:
    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.client.workflow.spec import WorkflowDraft


if TYPE_CHECKING:
    Faults = Iterator[WorkflowValidationError]


def naming_faults(draft: WorkflowDraft) -> Faults:
    if not is_name(draft.name):
        yield _fault(f"a workflow needs a name, of at most {LONGEST_NAME} characters", ErrorCode.WORKFLOW_NO_NAME)
    if not draft.nodes:
        yield _fault("a workflow needs at least one node", ErrorCode.WORKFLOW_NO_NODES)
    if not is_name(draft.definition_key):
        yield _fault(
            f"definition_key is missing, or longer than {LONGEST_NAME} characters",
            ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
            hint='a text that stays the same when the workflow is renamed: definition_key="billing.v1"',
        )
    for node in draft.nodes:
        if isinstance(node, SubWorkflowNode) and not is_name(getattr(node.workflow_def, "definition_key", None)):
            text = f"node {node.node_id!r}: {node.workflow_def.__qualname__} has no usable definition_key"
            yield _fault(text, ErrorCode.WORKFLOW_NO_DEFINITION_KEY)
    if draft.nodes and draft.app is None:
        yield _fault(
            "the workflow belongs to no app",
            ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING,
            hint="only sub-workflows do not say which; make it by app.workflow(...), or give app=",
        )


def is_name(text: object) -> bool:
    """Whether runs can be stored, and found, under this text."""
    return is_storable_text(text) and len(text) <= LONGEST_NAME


def graph_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        for each in node.waits_for:
            if draft.index_of(each) is None:
                name = getattr(each, "node_id", None) or getattr(each, "name", type(each).__qualname__)
                yield _fault(
                    f"node {node.node_id!r} waits for {name!r}, which is not in the workflow",
                    ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
                    hint="put it into tasks",
                )
    if draft.nodes and all(node.waits_for for node in draft.nodes):
        yield _fault("every node waits for another one", ErrorCode.WORKFLOW_NO_ROOT_TASKS)
    if cycle := find_cycle(range(len(draft.nodes)), lambda index: draft.dependencies_of(draft.nodes[index])):
        yield _cycle("nodes wait for each other", (draft.nodes[index].node_id for index in cycle))
    if nested := find_cycle(
        _definitions_in(draft.nodes), lambda each: _definitions_in(each.get_workflow_nodes().values())
    ):
        yield _cycle("workflow definitions contain each other", (each.__qualname__ for each in nested))


def join_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        if reason := _join_fault(node, len(draft.dependencies_of(node))):
            yield _fault(f"node {node.node_id!r}: {reason}", ErrorCode.WORKFLOW_INVALID_JOIN)


def _join_fault(node: AnyNode, dependencies: int) -> str | None:
    least = node.min_success
    match node.join:
        case JoinType.QUORUM:
            is_possible = isinstance(least, int) and not isinstance(least, bool) and 1 <= least <= dependencies
            return None if is_possible else f"a quorum needs min_success of 1 to {dependencies}, the nodes it waits for"
        case JoinType.ANY if not dependencies:
            return "join 'any' without a node to wait for"
        case JoinType.ALL | JoinType.ANY:
            return None if least is None else "min_success belongs to join 'quorum'"
        case _:
            return f"join must be 'all', 'any' or 'quorum', not {node.join!r}"


def output_faults(draft: WorkflowDraft) -> Faults:
    place = draft.index_of(draft.output)
    if place is None and draft.output is not None:
        yield _fault("the output is not in the workflow", ErrorCode.WORKFLOW_INVALID_OUTPUT, hint="put it into tasks")
    if place is not None and not is_assignable(draft.nodes[place].ok_type, draft.declared):
        yield _fault(
            f"the output is {type_name(draft.nodes[place].ok_type)}, declared is {type_name(draft.declared)}",
            ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH,
        )
    if draft.on_error not in tuple(OnError):
        # No code is for this alone; like a success policy it says how runs end.
        yield _policy_fault(f"on_error must be 'fail' or 'pause', not {draft.on_error!r}")
    yield from _policy_faults(draft)


def _policy_faults(draft: WorkflowDraft) -> Faults:
    policy = draft.success_policy
    if policy is None:
        return
    if not _is_policy(policy):
        yield _policy_fault(f"success_policy must be a SuccessPolicy of SuccessCases, not {policy!r}")
        return
    if not policy.cases or not all(case.required for case in policy.cases):
        yield _policy_fault("a success policy needs cases, and each case a required node")
    if any(draft.index_of(node) is None for case in policy.cases for node in case.required):
        yield _policy_fault("a success case requires a node that is not in the workflow")
    if any(draft.index_of(node) is None for node in policy.optional or ()):
        yield _policy_fault("a success policy calls a node optional that is not in the workflow")


def _is_policy(policy: object) -> TypeGuard[SuccessPolicy]:
    return isinstance(policy, SuccessPolicy) and all(
        isinstance(cast("object", case), SuccessCase) for case in policy.cases
    )


def _definitions_in(nodes: Iterable[AnyNode]) -> list[type[WorkflowDefinition[Any]]]:
    return [node.workflow_def for node in nodes if isinstance(node, SubWorkflowNode)]


def _cycle(text: str, way: Iterable[object]) -> WorkflowValidationError:
    return _fault(f"{text}: {' → '.join(map(str, way))}", ErrorCode.WORKFLOW_CYCLE_DETECTED)


def _policy_fault(text: str) -> WorkflowValidationError:
    return _fault(text, ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY)


def _fault(text: str, code: ErrorCode, *, hint: str | None = None) -> WorkflowValidationError:
    return WorkflowValidationError(text, code=code, hint=hint)


# The parameters of a node: those of its task, or those with which its sub-workflow is built.


def argument_codec(node: AnyNode) -> TaskCodec:
    """How the arguments of a node are written and read; `WorkflowValidationError` where a definition makes no sense."""
    return node.fn.definition.codec if isinstance(node, TaskNode) else build_with_codec(node.workflow_def)


def build_with_codec(definition: type[WorkflowDefinition[Any]]) -> TaskCodec:
    """The same for what `build_with` takes beside the app."""
    function = definition.build_with.__func__
    beside_the_app = list(inspect.signature(function).parameters.values())[2:]
    parameters = beside_the_app if definition.is_parametrised() else []
    values = {each.name: parameter_codec(function, each) for each in parameters}
    for name, value in values.items():
        if isinstance(value, Err):
            raise WorkflowValidationError(
                f"{definition.__qualname__}.build_with: parameter {name!r}: {value.error.reason}",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
                hint=value.error.hint,
                location=definition.__location__,
            )
    return TaskCodec(
        signature=CallSignature.of(inspect.Signature(parameters)),
        parameter_codecs={name: value.unwrap() for name, value in values.items()},
        result_codec=PlainCodec(),
    )


# What can be wrong with the arguments of a node, written down or taken from other nodes.


def argument_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        if isinstance(node, SubWorkflowNode) and not node.workflow_def.is_parametrised():
            yield from _unwanted(node)
            continue
        try:
            codec = argument_codec(node)
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

    draft: WorkflowDraft
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
        for name in (
            each for each in self.codec.signature.required if each not in given and not self._is_injected(each)
        ):
            code = ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS if is_task else does_not_bind
            yield self._fault(f"parameter {name!r} is missing", code)
        for name in self.node.kwargs.keys() & self.node.args_from.keys():
            text = f"parameter {name!r} stands in kwargs and in args_from"
            yield self._fault(text, ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP)

    def _values(self) -> Faults:
        for name in filter(self._is_parameter, self.node.kwargs):
            try:
                self.codec.encode_keywords({name: self.node.kwargs[name]})
            except PayloadError as refused:
                yield self._fault(str(refused), ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE)

    def _source(self, parameter: str, source: AnyNode) -> Faults:
        if not self._is_waited_for(source):
            text = f"args_from[{parameter!r}] is not among the nodes it waits for"
            hint = "put it into waits_for, or use from_node"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_ARGS_FROM, hint=hint)
        if self.draft.index_of(source) is None or not self._is_parameter(parameter):
            return
        target = self.codec.parameter_codecs[self.codec.signature.parameter_for(parameter)]
        if not isinstance(target, TaskResultCodec) or not is_assignable(source.ok_type, target.ok_type):
            text = f"parameter {parameter!r} must be a TaskResult[{type_name(source.ok_type)}, TaskError]"
            yield self._fault(text, ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH)
        if self.node.join != JoinType.ALL and parameter in self.codec.signature.required:
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
        shape = self.codec.signature
        is_known = name in shape.keywords or (shape.var_keyword is not None and isinstance(name, str))
        return is_known and not isinstance(self.codec.parameter_codecs.get(name), InjectedCodec)

    def _is_injected(self, name: str) -> bool:
        is_told = name == META_PARAMETER or (name == CONTEXT_PARAMETER and bool(self.node.workflow_ctx_from))
        return is_told and is_injected(self.codec, name)

    def _fault(self, text: str, code: ErrorCode, *, hint: str | None = None) -> WorkflowValidationError:
        return WorkflowValidationError(f"node {self.node.node_id!r}: {text}", code=code, hint=hint)


# What can be wrong with the app, the queue, the priority or the deadline of a node.


class ForeignTask(WorkflowValidationError):
    """A node runs a task of another app, which the workers of this one do not know."""


def ownership_faults(draft: WorkflowDraft) -> Iterator[WorkflowValidationError]:
    for node in (each for each in draft.nodes if isinstance(each, TaskNode)):
        if node.fn.app is not draft.app:
            yield ForeignTask(
                f"node {node.node_id!r}: {node.name!r} is a task of another app",
                code=ErrorCode.TASK_NOT_REGISTERED,
                hint="the nodes of a workflow are tasks of one app",
            )


def option_faults(draft: WorkflowDraft) -> Iterator[WorkflowValidationError]:
    for node in (each for each in draft.nodes if isinstance(each, TaskNode)):
        where = f"node {node.node_id!r}"
        if fault := queue_fault(node.queue or node.fn.definition.options.queue_name, draft.queues):
            text = f"{where}: {fault.message}"
            yield WorkflowValidationError(text, code=ErrorCode.WORKFLOW_UNRESOLVED_QUEUE, hint=fault.help_text)
        if node.priority is not None and not is_priority(node.priority):
            text = f"{where}: priority must be a whole number of 1 to 100, 1 first"
            yield WorkflowValidationError(text, code=ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY)
        if node.good_until is None:
            continue
        try:
            check_good_until(node.good_until)
        except ValueError as refused:
            # No code is for this alone; it is a value of the node that cannot be stored.
            code = ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE
            yield WorkflowValidationError(f"{where}: {refused}", code=code)


# Whether the nodes of a workflow can be told apart; nothing else about them can be said before they can.


def node_id_faults(written: Sequence[object]) -> Iterator[WorkflowValidationError]:
    """What is no node, has an id that cannot be one, or is there more than once."""
    nodes: list[AnyNode] = []
    for each in written:
        if isinstance(each, TaskNode | SubWorkflowNode):
            nodes.append(cast("AnyNode", each))
        else:
            yield _no_node(len(nodes), each)
    ids = Counter(node.id_at_index(index) for index, node in enumerate(nodes))
    yield from (_unfit(node_id) for node_id in ids if not is_node_id(node_id))
    yield from (_doubled(f"the id {node_id!r}") for node_id, count in ids.items() if count > 1)
    # One without an id of its own would get two.
    listed = Counter(node for node in nodes if node.explicit_id is None)
    yield from (_doubled(f"the node of {node.name!r}") for node, count in listed.items() if count > 1)


def _no_node(index: int, given: object) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"after {index} nodes: {type(given).__qualname__} is no node",
        code=ErrorCode.WORKFLOW_INVALID_NODE_ID,
        hint="nodes are made by task.node(...)(...), TaskNode and SubWorkflowNode",
    )


def _unfit(node_id: str) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"{node_id!r} cannot be the id of a node",
        code=ErrorCode.WORKFLOW_INVALID_NODE_ID,
        hint=f"1 to {LONGEST_NODE_ID} letters, digits, or any of _ - : .",
    )


def _doubled(what: str) -> WorkflowValidationError:
    return WorkflowValidationError(
        f"{what} is there more than once",
        code=ErrorCode.WORKFLOW_DUPLICATE_NODE_ID,
        hint="give each node an id of its own, and list it once",
    )
