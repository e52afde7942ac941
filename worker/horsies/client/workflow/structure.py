"""What can be wrong with a workflow as a whole: its name, its graph, its joins, what it ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, cast

from horsies.client.workflow.declared import fits, type_name
from horsies.client.workflow.nodes import SubWorkflowNode
from horsies.client.workflow.policies import SuccessCase, SuccessPolicy
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.model.workflow.cycles import find_cycle
from horsies.model.workflow.plan import JoinType, OnError
from horsies.registry.checks import LONGEST_NAME, is_stored_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horsies.client.workflow.definition import WorkflowDefinition
    from horsies.client.workflow.draft import Draft
    from horsies.client.workflow.nodes import AnyNode

    Faults = Iterator[WorkflowValidationError]


def naming_faults(draft: Draft) -> Faults:
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
    if draft.nodes and draft.host is None:
        yield _fault(
            "the workflow belongs to no app",
            ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING,
            hint="only sub-workflows do not say which; make it by app.workflow(...), or give app=",
        )


def is_name(text: object) -> bool:
    """Whether runs can be stored, and found, under this text."""
    return is_stored_text(text) and len(text) <= LONGEST_NAME


def graph_faults(draft: Draft) -> Faults:
    for node in draft.nodes:
        for each in node.waits_for:
            if draft.place_of(each) is None:
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


def join_faults(draft: Draft) -> Faults:
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


def ending_faults(draft: Draft) -> Faults:
    place = draft.place_of(draft.output)
    if place is None and draft.output is not None:
        yield _fault("the output is not in the workflow", ErrorCode.WORKFLOW_INVALID_OUTPUT, hint="put it into tasks")
    if place is not None and not fits(draft.nodes[place].ok_type, draft.declared):
        yield _fault(
            f"the output is {type_name(draft.nodes[place].ok_type)}, declared is {type_name(draft.declared)}",
            ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH,
        )
    if draft.on_error not in tuple(OnError):
        # No code is for this alone; like a success policy it says how runs end.
        yield _policy_fault(f"on_error must be 'fail' or 'pause', not {draft.on_error!r}")
    yield from _policy_faults(draft)


def _policy_faults(draft: Draft) -> Faults:
    policy = draft.success_policy
    if policy is None:
        return
    if not _is_policy(policy):
        yield _policy_fault(f"success_policy must be a SuccessPolicy of SuccessCases, not {policy!r}")
        return
    if not policy.cases or not all(case.required for case in policy.cases):
        yield _policy_fault("a success policy needs cases, and each case a required node")
    if any(draft.place_of(node) is None for case in policy.cases for node in case.required):
        yield _policy_fault("a success case requires a node that is not in the workflow")
    if any(draft.place_of(node) is None for node in policy.optional or ()):
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
