"""Validation of workflow specs.

Each `*_faults` function yields the errors of one aspect; `WorkflowSpec` raises them together.
"""

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
from horsies.model.task import DEFAULT_QUEUE, check_good_until, is_priority, queue_fault
from horsies.model.workflow.plan import LONGEST_NODE_ID, JoinType, OnError, find_cycle, is_node_id
from horsies.model.workflow.views import CONTEXT_PARAMETER, META_PARAMETER
from horsies.registry.definition import MAX_NAME_LENGTH, is_storable_text
from horsies.registry.invocation import is_injected

if TYPE_CHECKING:
    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.client.workflow.spec import WorkflowDraft

    Faults = Iterator[WorkflowValidationError]


class ForeignTask(WorkflowValidationError):
    """A node runs a task of another app, which this app's workers do not know."""


# Node ids, names and ownership


def node_id_faults(nodes: Sequence[object], workflow_name: str) -> Faults:
    """Objects that are not nodes, invalid ids and duplicates. Checked first: all other checks need unique ids."""
    valid: list[AnyNode] = []
    for node in nodes:
        if isinstance(node, TaskNode | SubWorkflowNode):
            valid.append(cast("AnyNode", node))
        else:
            yield _fault(
                f"after {len(valid)} nodes: {type(node).__qualname__} is not a node",
                ErrorCode.WORKFLOW_INVALID_NODE_ID,
                hint="make nodes with task.node(...)(...), TaskNode or SubWorkflowNode",
            )
    ids = Counter(node.id_in(workflow_name, index) for index, node in enumerate(valid))
    for node_id in ids:
        if not is_node_id(node_id):
            hint = f"use 1 to {LONGEST_NODE_ID} letters, digits or any of _ - : ."
            yield _fault(f"invalid node id {node_id!r}", ErrorCode.WORKFLOW_INVALID_NODE_ID, hint=hint)
    yield from (_duplicate(f"node id {node_id!r}") for node_id, count in ids.items() if count > 1)
    # A node listed twice without an explicit id is not caught above: each place would assign it a different id.
    listed = Counter(node for node in valid if node.explicit_id is None)
    yield from (_duplicate(f"node of {node.name!r}") for node, count in listed.items() if count > 1)


def naming_faults(draft: WorkflowDraft) -> Faults:
    if not is_name(draft.name):
        yield _fault(f"a workflow needs a name of at most {MAX_NAME_LENGTH} characters", ErrorCode.WORKFLOW_NO_NAME)
    if not draft.nodes:
        yield _fault("a workflow needs at least one node", ErrorCode.WORKFLOW_NO_NODES)
    if not is_name(draft.definition_key):
        yield _fault(
            f"definition_key is missing or longer than {MAX_NAME_LENGTH} characters",
            ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
            hint='set a key that stays the same when the workflow is renamed: definition_key="billing.v1"',
        )
    for node in draft.nodes:
        if isinstance(node, SubWorkflowNode) and not is_name(getattr(node.workflow_def, "definition_key", None)):
            text = f"node {node.node_id!r}: {node.workflow_def.__qualname__} has no valid definition_key"
            yield _fault(text, ErrorCode.WORKFLOW_NO_DEFINITION_KEY)
    if draft.nodes and draft.app is None:
        yield _fault(
            "the workflow has no app",
            ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING,
            hint="it has no task node to take the app from; use app.workflow(...) or pass app=",
        )


def is_name(text: object) -> bool:
    """Whether the text can be stored as a workflow name or key."""
    return is_storable_text(text) and len(text) <= MAX_NAME_LENGTH


def ownership_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        if isinstance(node, TaskNode) and node.fn.app is not draft.app:
            yield ForeignTask(
                f"node {node.node_id!r}: {node.name!r} is a task of another app",
                code=ErrorCode.TASK_NOT_REGISTERED,
                hint="use tasks of one app in a workflow",
            )


# Graph and joins


def graph_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        for dependency in node.waits_for:
            if draft.index_of(dependency) is None:
                name = getattr(dependency, "node_id", None) or getattr(
                    dependency, "name", type(dependency).__qualname__
                )
                yield _fault(
                    f"node {node.node_id!r} waits for {name!r}, which is not in the workflow",
                    ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
                    hint="add it to tasks",
                )
    if draft.nodes and all(node.waits_for for node in draft.nodes):
        yield _fault("no node can start: every node waits for another one", ErrorCode.WORKFLOW_NO_ROOT_TASKS)
    if cycle := find_cycle(range(len(draft.nodes)), lambda index: draft.indexes_of(draft.nodes[index].waits_for)):
        yield _cycle("nodes wait for each other", (draft.nodes[index].node_id for index in cycle))
    if nested := find_cycle(
        _definitions_in(draft.nodes), lambda definition: _definitions_in(definition.get_workflow_nodes().values())
    ):
        yield _cycle("workflow definitions contain each other", (definition.__qualname__ for definition in nested))


def join_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        if reason := _join_fault(node, len(draft.indexes_of(node.waits_for))):
            yield _fault(f"node {node.node_id!r}: {reason}", ErrorCode.WORKFLOW_INVALID_JOIN)


def _join_fault(node: AnyNode, dependencies: int) -> str | None:
    least = node.min_success
    match node.join:
        case JoinType.QUORUM:
            is_valid = isinstance(least, int) and not isinstance(least, bool) and 1 <= least <= dependencies
            return None if is_valid else f"join 'quorum' needs min_success from 1 to {dependencies}, its dependencies"
        case JoinType.ANY if not dependencies:
            return "join 'any' needs at least one dependency"
        case JoinType.ALL | JoinType.ANY:
            return None if least is None else "min_success requires join 'quorum'"
        case _:
            return f"join must be 'all', 'any' or 'quorum', not {node.join!r}"


# Arguments


def argument_faults(draft: WorkflowDraft) -> Faults:
    for node in draft.nodes:
        if isinstance(node, SubWorkflowNode) and not node.workflow_def.is_parametrised():
            if node.kwargs or node.args_from or node.workflow_ctx_from:
                yield _fault(
                    f"node {node.node_id!r}: {node.workflow_def.__qualname__} takes no parameters",
                    ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
                    hint="override its class method build_with(cls, app, ...)",
                )
            continue
        try:
            codec = argument_codec(node)
        except WorkflowValidationError as error:
            yield error
            continue
        yield from _ArgumentValidator(draft=draft, node=node, codec=codec).faults()


def argument_codec(node: AnyNode) -> TaskCodec:
    """Encodes the arguments of a node; raises WorkflowValidationError for an invalid `build_with`."""
    return node.fn.definition.codec if isinstance(node, TaskNode) else build_with_codec(node.workflow_def)


def build_with_codec(definition: type[WorkflowDefinition[Any]]) -> TaskCodec:
    """Encodes the parameters of `build_with`, apart from `cls` and `app`."""
    function = inspect.unwrap(definition.build_with.__func__)
    parameters = list(inspect.signature(function).parameters.values())[2:] if definition.is_parametrised() else []
    codecs = {parameter.name: parameter_codec(function, parameter) for parameter in parameters}
    for name, codec in codecs.items():
        if isinstance(codec, Err):
            raise WorkflowValidationError(
                f"{definition.__qualname__}.build_with: parameter {name!r}: {codec.error.reason}",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
                hint=codec.error.hint,
                location=definition.__location__,
            )
    return TaskCodec(
        signature=CallSignature.of(inspect.Signature(parameters)),
        parameter_codecs={name: codec.unwrap() for name, codec in codecs.items()},
        result_codec=PlainCodec(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArgumentValidator:
    """Checks the arguments of one node against the parameters of its task or `build_with`."""

    draft: WorkflowDraft
    node: AnyNode
    codec: TaskCodec

    def faults(self) -> Faults:
        yield from self._binding_faults()
        for name in filter(self._is_parameter, self.node.kwargs):  # unknown names are reported already
            try:
                self.codec.encode_keywords({name: self.node.kwargs[name]})
            except PayloadError as error:
                yield self._fault(str(error), ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE)
        for parameter, source in self.node.args_from.items():
            yield from self._source_faults(parameter, source)
        yield from self._context_faults()

    def _binding_faults(self) -> Faults:
        """Unknown, missing and doubly given parameters."""
        given = [*self.node.kwargs, *self.node.args_from]
        is_task = not isinstance(self.node, SubWorkflowNode)
        build_with_code = ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING
        for name in dict.fromkeys(name for name in given if not self._is_parameter(name)):
            code = ErrorCode.WORKFLOW_INVALID_KWARG_KEY if is_task else build_with_code
            yield self._fault(f"unknown parameter {name!r}", code)
        for name in self.codec.signature.required:
            if name not in given and not self._is_provided(name):
                code = ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS if is_task else build_with_code
                is_join = len(self.node.waits_for) > 1 and not self.node.args_from
                hint = (
                    "several results are passed to **kwargs or workflow_ctx, not to one parameter" if is_join else None
                )
                yield self._fault(f"parameter {name!r} is missing", code, hint=hint)
        for name in self.node.kwargs.keys() & self.node.args_from.keys():
            text = f"parameter {name!r} is in both kwargs and args_from"
            yield self._fault(text, ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP)

    def _source_faults(self, parameter: str, source: AnyNode) -> Faults:
        """Faults of one `args_from` entry."""
        if not self._is_dependency(source):
            text = f"args_from[{parameter!r}] is a node that it does not wait for"
            hint = "add it to waits_for, or use from_node"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_ARGS_FROM, hint=hint)
        # Reported already, and without both ends there are no types to compare.
        if self.draft.index_of(source) is None or not self._is_parameter(parameter):
            return
        target = self.codec.parameter_codecs[self.codec.signature.parameter_for(parameter)]
        if self.codec.takes_any_result(parameter):
            return
        is_value = not isinstance(target, TaskResultCodec | PlainCodec)
        wanted = target.ok_type if isinstance(target, TaskResultCodec) else target.annotation
        if isinstance(target, PlainCodec) or not is_assignable(source.ok_type, wanted):
            kind = type_name(source.ok_type)
            text = f"parameter {parameter!r} must be a TaskResult[{kind}, TaskError], or {kind} for its value alone"
            yield self._fault(text, ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH)
        elif is_value and (self.node.allow_failed_deps or self.node.join != JoinType.ALL):
            text = f"parameter {parameter!r} takes a value, but its source may fail; declare it as a TaskResult"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_JOIN)
        if self.node.join != JoinType.ALL and parameter in self.codec.signature.required:
            text = f"parameter {parameter!r} needs a default: join {str(self.node.join)!r} may not wait for its source"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_JOIN)

    def _context_faults(self) -> Faults:
        sources = self.node.workflow_ctx_from or ()
        if not all(map(self._is_dependency, sources)):
            text = "workflow_ctx_from has a node that it does not wait for"
            yield self._fault(text, ErrorCode.WORKFLOW_INVALID_CTX_FROM, hint="add it to waits_for")
        if sources and not is_injected(self.codec, CONTEXT_PARAMETER):
            text = f"{self.node.name!r} has no parameter {CONTEXT_PARAMETER}: WorkflowContext | None = None"
            yield self._fault(text, ErrorCode.WORKFLOW_CTX_PARAM_MISSING)

    def _is_dependency(self, source: object) -> bool:
        return any(source is node for node in self.node.waits_for)

    def _is_parameter(self, name: str) -> bool:
        """Whether the author of the node may pass it: it exists and is not injected by the worker."""
        signature = self.codec.signature
        is_known = name in signature.keywords or (signature.var_keyword is not None and isinstance(name, str))
        return is_known and not isinstance(self.codec.parameter_codecs.get(name), InjectedCodec)

    def _is_provided(self, name: str) -> bool:
        """Whether the worker passes it: the metadata always, the context only to a node with `workflow_ctx_from`."""
        is_available = name == META_PARAMETER or (name == CONTEXT_PARAMETER and bool(self.node.workflow_ctx_from))
        return is_available and is_injected(self.codec, name)

    def _fault(self, text: str, code: ErrorCode, *, hint: str | None = None) -> WorkflowValidationError:
        return _fault(f"node {self.node.node_id!r}: {text}", code, hint=hint)


# Node options, output and success policy


def option_faults(draft: WorkflowDraft) -> Faults:
    for node in (node for node in draft.nodes if isinstance(node, TaskNode)):
        prefix = f"node {node.node_id!r}"
        queue_name = node.queue or node.fn.definition.options.queue_name
        # A node may name the only queue that there is without custom queues.
        is_default = draft.queues is None and queue_name == DEFAULT_QUEUE
        if fault := queue_fault(None if is_default else queue_name, draft.queues):
            yield _fault(f"{prefix}: {fault.message}", ErrorCode.WORKFLOW_UNRESOLVED_QUEUE, hint=fault.help_text)
        if node.priority is not None and not is_priority(node.priority):
            text = f"{prefix}: priority must be an integer from 1 (first) to 100"
            yield _fault(text, ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY)
        if node.good_until is None:
            continue
        try:
            check_good_until(node.good_until)
        except ValueError as error:
            # There is no specific code; a value of the node cannot be stored.
            yield _fault(f"{prefix}: {error}", ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE)


def output_faults(draft: WorkflowDraft) -> Faults:
    index = draft.index_of(draft.output)
    if index is None and draft.output is not None:
        yield _fault("the output is not in the workflow", ErrorCode.WORKFLOW_INVALID_OUTPUT, hint="add it to tasks")
    if index is not None and not is_assignable(draft.nodes[index].ok_type, draft.declared):
        yield _fault(
            f"the output has type {type_name(draft.nodes[index].ok_type)}, declared is {type_name(draft.declared)}",
            ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH,
        )
    if draft.on_error not in tuple(OnError):
        # There is no specific code; like a success policy, on_error decides how runs end.
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
        yield _policy_fault("a success policy needs at least one case, and each case a required node")
    if any(draft.index_of(node) is None for case in policy.cases for node in case.required):
        yield _policy_fault("a success case requires a node that is not in the workflow")
    if any(draft.index_of(node) is None for node in policy.optional or ()):
        yield _policy_fault("the success policy has an optional node that is not in the workflow")


def _is_policy(policy: object) -> TypeGuard[SuccessPolicy]:
    return isinstance(policy, SuccessPolicy) and all(
        isinstance(cast("object", case), SuccessCase) for case in policy.cases
    )


def _definitions_in(nodes: Iterable[AnyNode]) -> list[type[WorkflowDefinition[Any]]]:
    return [node.workflow_def for node in nodes if isinstance(node, SubWorkflowNode)]


def _cycle(text: str, path: Iterable[object]) -> WorkflowValidationError:
    return _fault(f"{text}: {' → '.join(map(str, path))}", ErrorCode.WORKFLOW_CYCLE_DETECTED)


def _duplicate(subject: str) -> WorkflowValidationError:
    hint = "give each node a unique id, and list it once"
    return _fault(f"duplicate {subject}", ErrorCode.WORKFLOW_DUPLICATE_NODE_ID, hint=hint)


def _policy_fault(text: str) -> WorkflowValidationError:
    return _fault(text, ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY)


def _fault(text: str, code: ErrorCode, *, hint: str | None = None) -> WorkflowValidationError:
    return WorkflowValidationError(text, code=code, hint=hint)
