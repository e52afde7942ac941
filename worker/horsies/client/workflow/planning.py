"""From a workflow that is known to be sound to the plan of its runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from horsies.client.workflow.nodes import SubWorkflowNode
from horsies.client.workflow.parameters import codec_of
from horsies.codec.wire import canonical
from horsies.model.queues import DEFAULT_QUEUE, effective_priority
from horsies.model.workflow.plan import JoinType, NodePlan, OnError, SuccessRule, WorkflowPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horsies.client.workflow.draft import Draft
    from horsies.client.workflow.nodes import AnyNode, TaskNode
    from horsies.model.workflow.names import NodeKey


def plan_of(draft: Draft, on_error: OnError) -> WorkflowPlan:
    """The plan of a draft in which no check found a fault."""
    policy = draft.success_policy
    return WorkflowPlan(
        name=draft.name,
        definition_key=draft.definition_key or "",
        on_error=on_error,
        nodes=tuple(_node_plan(draft, index, node) for index, node in enumerate(draft.nodes)),
        output_index=draft.place_of(draft.output),
        success=None
        if policy is None
        else SuccessRule(
            cases=tuple(_places(draft, case.required) for case in policy.cases),
            optional=_places(draft, policy.optional or ()),
        ),
    )


def _node_plan(draft: Draft, index: int, node: AnyNode) -> NodePlan:
    own = _of_sub_workflow(node) if isinstance(node, SubWorkflowNode) else _of_task(draft, node)
    return NodePlan(
        index=index,
        node_id=node.id_at(index),
        name=node.name,
        kwargs_json=codec_of(node).encode_keywords(node.kwargs),
        dependencies=draft.dependencies_of(node),
        args_from={name: draft.places[id(source)] for name, source in node.args_from.items()},
        ctx_from=_context_sources(draft, node),
        allow_failed_deps=node.allow_failed_deps,
        join=JoinType(node.join),
        min_success=node.min_success,
        **own,
    )


def _of_task(draft: Draft, node: TaskNode[Any]) -> dict[str, Any]:
    task, queues = node.fn.definition, draft.queues or {}
    queue_name = node.queue or task.options.queue_name or DEFAULT_QUEUE
    return {
        "queue_name": queue_name,
        "priority": effective_priority(
            sent_with=node.priority, task=task.options.priority, queue=queues.get(queue_name)
        ),
        "good_until": node.good_until,
        "options_json": canonical({**json.loads(task.stored_options), "flags": dict(task.flags)}),
        "max_retries": task.max_retries,
    }


def _of_sub_workflow(node: SubWorkflowNode[Any]) -> dict[str, Any]:
    return {"is_subworkflow": True, "definition_key": node.workflow_def.definition_key}


def _context_sources(draft: Draft, node: AnyNode) -> tuple[str, ...] | None:
    if not node.workflow_ctx_from:
        return None
    places = _places(draft, node.workflow_ctx_from)
    return tuple(draft.nodes[place].id_at(place) for place in places)


def _places(draft: Draft, nodes: Iterable[AnyNode | NodeKey[Any]]) -> tuple[int, ...]:
    return tuple(sorted({place for node in nodes if (place := draft.place_of(node)) is not None}))
