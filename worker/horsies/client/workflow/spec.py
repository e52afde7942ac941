"""A workflow that can be started: checked, its nodes in their places, nothing in it can be changed any more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from horsies.client.task import TaskApp
from horsies.client.workflow.nodes import AnyNode, SubWorkflowNode, SuccessPolicy, TaskNode
from horsies.client.workflow.validation import (
    argument_codec,
    argument_faults,
    graph_faults,
    join_faults,
    naming_faults,
    node_id_faults,
    option_faults,
    output_faults,
    ownership_faults,
)
from horsies.codec.canonical_json import canonical_json
from horsies.errors import ErrorCode, SourceLocation, WorkflowValidationError, raise_together
from horsies.model.result import Err
from horsies.model.task import DEFAULT_QUEUE, effective_priority, parse_id
from horsies.model.workflow.plan import JoinType, NodeKey, NodePlan, OnError, SuccessRule, WorkflowPlan
from horsies.model.workflow.views import WorkflowStartError, WorkflowStartErrorCode, WorkflowStartResult

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker
    from horsies.client.workflow.handle import WorkflowHandle


# A workflow on its way from what was written to what can be run: nodes have their places, nothing is checked yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDraft:
    """What a spec was given, its nodes copied and numbered; `places` finds a node's index by its identity."""

    name: str
    definition_key: str | None
    nodes: tuple[AnyNode, ...]
    index_by_identity: Mapping[int, int]
    on_error: object
    output: AnyNode | NodeKey[Any] | None
    success_policy: SuccessPolicy | None
    declared: object
    app: TaskApp | None

    def index_of(self, node: object) -> int | None:
        """The index of a node, or of the node that a key names."""
        if isinstance(node, NodeKey):
            return next((index for index, each in enumerate(self.nodes) if each.node_id == node.node_id), None)
        return self.index_by_identity.get(id(node))

    def dependencies_of(self, node: AnyNode) -> tuple[int, ...]:
        """The indexes of what it waits for; what is not in the workflow is left out."""
        return tuple(sorted({place for each in node.waits_for if (place := self.index_of(each)) is not None}))

    @property
    def queues(self) -> dict[str, int] | None:
        """The priorities of the app's custom queues; None where it has only its default one."""
        queues = None if self.app is None else self.app.config.custom_queues
        return None if queues is None else {queue.name: queue.priority for queue in queues}


# From a workflow that is known to be sound to the plan of its runs.


def build_plan(draft: WorkflowDraft, on_error: OnError) -> WorkflowPlan:
    """The plan of a draft in which no check found a fault."""
    policy = draft.success_policy
    return WorkflowPlan(
        name=draft.name,
        definition_key=draft.definition_key or "",
        on_error=on_error,
        nodes=tuple(_node_plan(draft, index, node) for index, node in enumerate(draft.nodes)),
        output_index=draft.index_of(draft.output),
        success_rule=None
        if policy is None
        else SuccessRule(
            cases=tuple(_indexes(draft, case.required) for case in policy.cases),
            optional=_indexes(draft, policy.optional or ()),
        ),
    )


def _node_plan(draft: WorkflowDraft, index: int, node: AnyNode) -> NodePlan:
    own = _of_sub_workflow(node) if isinstance(node, SubWorkflowNode) else _of_task(draft, node)
    return NodePlan(
        index=index,
        node_id=node.id_at_index(index),
        name=node.name,
        kwargs_json=argument_codec(node).encode_keywords(node.kwargs),
        dependencies=draft.dependencies_of(node),
        args_from={name: draft.index_by_identity[id(source)] for name, source in node.args_from.items()},
        ctx_from=_context_sources(draft, node),
        allow_failed_deps=node.allow_failed_deps,
        join=JoinType(node.join),
        min_success=node.min_success,
        **own,
    )


def _of_task(draft: WorkflowDraft, node: TaskNode[Any]) -> dict[str, Any]:
    task, queues = node.fn.definition, draft.queues or {}
    queue_name = node.queue or task.options.queue_name or DEFAULT_QUEUE
    return {
        "queue_name": queue_name,
        "priority": effective_priority(
            sent_with=node.priority, task=task.options.priority, queue=queues.get(queue_name)
        ),
        "good_until": node.good_until,
        "options_json": canonical_json({**json.loads(task.options_json), "flags": dict(task.flags)}),
        "max_retries": task.max_retries,
    }


def _of_sub_workflow(node: SubWorkflowNode[Any]) -> dict[str, Any]:
    return {"is_subworkflow": True, "definition_key": node.workflow_def.definition_key}


def _context_sources(draft: WorkflowDraft, node: AnyNode) -> tuple[str, ...] | None:
    if not node.workflow_ctx_from:
        return None
    places = _indexes(draft, node.workflow_ctx_from)
    return tuple(draft.nodes[place].id_at_index(place) for place in places)


def _indexes(draft: WorkflowDraft, nodes: Iterable[AnyNode | NodeKey[Any]]) -> tuple[int, ...]:
    return tuple(sorted({place for node in nodes if (place := draft.index_of(node)) is not None}))


T = TypeVar("T", default=Any)

CHECKS = (naming_faults, ownership_faults, graph_faults, join_faults, argument_faults, option_faults, output_faults)


class WorkflowSpec(Generic[T]):
    """A workflow of nodes; T is the type of what its runs end with.

    Making one reports every fault at once, but for nodes that cannot be told apart, which come first and alone.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = OnError.FAIL,
        output: AnyNode | NodeKey[Any] | None = None,
        success_policy: SuccessPolicy | None = None,
        definition_key: str | None = None,
        *,
        app: TaskApp | None = None,
        declared: object = Any,
        location: SourceLocation | None = None,
    ) -> None:
        written = list(tasks)
        where = location or SourceLocation.of_caller()
        _raise(name, node_id_faults(written), where)
        draft = WorkflowDraft(
            name=name,
            definition_key=definition_key,
            nodes=tuple(node.frozen_copy(index) for index, node in enumerate(written)),
            index_by_identity={id(node): index for index, node in enumerate(written)},
            on_error=on_error,
            output=output,
            success_policy=success_policy,
            declared=declared,
            app=app or _host_of(written),
        )
        _raise(name, (fault for check in CHECKS for fault in check(draft)), where)
        self.name = name
        self.definition_key = definition_key
        self.on_error = OnError(on_error)
        self.tasks = draft.nodes
        self._plan = build_plan(draft, self.on_error)
        self.output = None if self._plan.output_index is None else self.tasks[self._plan.output_index]
        self.success_policy = success_policy
        self._app = cast("TaskApp", draft.app)
        for index, node in enumerate(written):
            node.assign_index(index)

    @property
    def app(self) -> TaskApp:
        """The app whose runs these are."""
        return self._app

    def plan(self) -> WorkflowPlan:
        """What a run of it is made of."""
        return self._plan

    def start(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Store a run; `Ok` means that it is committed. The id of a run that exists gives the handle of that run."""
        from horsies.client.workflow.handle import start_blocking

        return start_blocking(self.start_async(workflow_id), self._plan)

    async def start_async(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        return await self.start_with_broker(None, workflow_id)

    async def start_with_broker(
        self, broker: PostgresBroker | None, workflow_id: str | None = None
    ) -> WorkflowStartResult[WorkflowHandle[T]]:
        """The same on this broker; None is that of the app."""
        if self._app.are_sends_suppressed():
            return self._refusal("sends are suppressed in this process")
        try:
            known = None if workflow_id is None else parse_id(str(workflow_id))
        except ValueError as refused:
            return self._refusal(str(refused), code=ErrorCode.WORKFLOW_INVALID_ID)
        from horsies.client.workflow.handle import start_plan

        return await start_plan(broker or self._app.get_broker(), self._plan, known)

    def retry_start(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Start again what a failed start was about, under the same id: it is stored at most once."""
        from horsies.client.workflow.handle import start_blocking

        return start_blocking(self.retry_start_async(error), self._plan)

    async def retry_start_async(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T]]:
        if error.workflow_name != self.name:
            return self._refusal(f"the error is of workflow {error.workflow_name!r}, not of {self.name!r}")
        if error.code in (WorkflowStartErrorCode.VALIDATION_FAILED, WorkflowStartErrorCode.BROKER_NOT_CONFIGURED):
            return self._refusal(f"{error.code} is nothing that another try could change")
        return await self.start_async(error.workflow_id)

    def _refusal(self, message: str, *, code: ErrorCode | None = None) -> Err[WorkflowStartError]:
        return Err(
            WorkflowStartError(
                code=WorkflowStartErrorCode.VALIDATION_FAILED,
                message=message,
                workflow_name=self.name,
                exception=None if code is None else WorkflowValidationError(message, code=code),
            )
        )

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}, {len(self.tasks)} nodes>"


def _host_of(nodes: Iterable[AnyNode]) -> TaskApp | None:
    """The app of the first task."""
    return next((node.fn.app for node in nodes if isinstance(node, TaskNode)), None)


def _raise(name: str, faults: Iterable[WorkflowValidationError], where: SourceLocation | None) -> None:
    found = list(faults)
    for fault in found:
        fault.location = fault.location or where
    raise_together(f"workflow {name!r}", found)
