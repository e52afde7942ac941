"""Workflow specs: validates the nodes, builds the plan, starts runs; `chain` and `group` make specs in one line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from horsies.client.task import TaskApp
from horsies.client.workflow.nodes import AnyNode, PartialCall, SubWorkflowNode, SuccessPolicy, TaskNode
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
from horsies.model.task_result import TaskError, TaskResult
from horsies.model.workflow.plan import JoinType, NodeKey, NodePlan, OnError, SuccessRule, WorkflowPlan
from horsies.model.workflow.views import WorkflowStartError, WorkflowStartErrorCode, WorkflowStartResult
from horsies.registry.definition import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker
    from horsies.client.workflow.handle import WorkflowHandle

T = TypeVar("T", default=Any)

BUILT_DEFINITION_KEY: ContextVar[str | None] = ContextVar("horsies_built_definition_key", default=None)
"""The key of the definition whose `build_with` is running: its spec needs no key of its own."""

CHECKS = (naming_faults, ownership_faults, graph_faults, join_faults, argument_faults, option_faults, output_faults)


class WorkflowSpec(Generic[T]):
    """A validated, immutable workflow; T is the type of its result.

    The constructor raises all faults together. Faults of node ids come first and alone: other checks need unique ids.
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
        nodes = list(tasks)
        location = location or SourceLocation.of_caller()
        definition_key = definition_key or BUILT_DEFINITION_KEY.get()
        _raise_faults(name, node_id_faults(nodes, name), location)
        # Copies, so that a later change of the author's nodes cannot change a validated workflow.
        draft = WorkflowDraft(
            name=name,
            definition_key=definition_key,
            nodes=tuple(node.frozen_copy(name, index) for index, node in enumerate(nodes)),
            index_by_identity={id(node): index for index, node in enumerate(nodes)},
            on_error=on_error,
            output=output,
            success_policy=success_policy,
            declared=declared,
            app=app or next((node.fn.app for node in nodes if isinstance(node, TaskNode)), None),
        )
        _raise_faults(name, (fault for check in CHECKS for fault in check(draft)), location)
        self.name = name
        self.definition_key = definition_key
        self.on_error = OnError(on_error)  # after the checks, which report an invalid value with the other faults
        self.tasks = draft.nodes
        self._plan = build_plan(draft, self.on_error)
        self.output = None if self._plan.output_index is None else self.tasks[self._plan.output_index]
        self.success_policy = success_policy
        self._app = cast("TaskApp", draft.app)
        # Last: a spec that fails validation must not change the author's nodes.
        for index, node in enumerate(nodes):
            node.assign_index(name, index)

    @property
    def app(self) -> TaskApp:
        """The app that runs this workflow."""
        return self._app

    def plan(self) -> WorkflowPlan:
        """The plan from which runs are stored."""
        return self._plan

    def start(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Store a run; `Ok` means that it is committed. If a run with this id exists, returns its handle."""
        from horsies.client.workflow.handle import start_blocking  # here, because it imports this module

        return start_blocking(self.start_async(workflow_id), self._plan)

    async def start_async(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        return await self.start_with_broker(None, workflow_id)

    async def start_with_broker(
        self, broker: PostgresBroker | None, workflow_id: str | None = None
    ) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Like `start_async`, on this broker; None uses the broker of the app."""
        if self._app.send_suppression.is_on():
            return self._validation_failed("sends are suppressed in this process")
        try:
            parsed_id = None if workflow_id is None else parse_id(str(workflow_id))
        except ValueError as error:
            return self._validation_failed(str(error), code=ErrorCode.WORKFLOW_INVALID_ID)
        from horsies.client.workflow.handle import start_plan

        return await start_plan(broker or self._app.get_broker(), self._plan, parsed_id)

    def retry_start(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Repeat a failed start under the same id, so the run is stored at most once."""
        from horsies.client.workflow.handle import start_blocking

        return start_blocking(self.retry_start_async(error), self._plan)

    async def retry_start_async(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T]]:
        if error.workflow_name != self.name:
            return self._validation_failed(
                f"the error belongs to workflow {error.workflow_name!r}, not to {self.name!r}"
            )
        if error.code in (WorkflowStartErrorCode.VALIDATION_FAILED, WorkflowStartErrorCode.BROKER_NOT_CONFIGURED):
            return self._validation_failed(f"a start that failed with {error.code} cannot be retried")
        return await self.start_async(error.workflow_id)

    def _validation_failed(self, message: str, *, code: ErrorCode | None = None) -> Err[WorkflowStartError]:
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


def _raise_faults(name: str, faults: Iterable[WorkflowValidationError], location: SourceLocation | None) -> None:
    """Raise all faults as one error, if there are any."""
    found = list(faults)
    for fault in found:
        fault.location = fault.location or location
    raise_together(f"workflow {name!r}", found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDraft:
    """The arguments of a spec before validation, with frozen copies of its nodes.

    `index_by_identity` maps `id()` of the author's nodes, which refer to each other, to their indexes.
    """

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
        """The index of a node, given directly or by key; None if it is not in the workflow."""
        if isinstance(node, NodeKey):
            return next((index for index, other in enumerate(self.nodes) if other.node_id == node.node_id), None)
        return self.index_by_identity.get(id(node))

    def indexes_of(self, nodes: Iterable[AnyNode | NodeKey[Any]]) -> tuple[int, ...]:
        """The sorted indexes of these nodes; nodes outside the workflow are left out."""
        return tuple(sorted({index for node in nodes if (index := self.index_of(node)) is not None}))

    @property
    def queues(self) -> dict[str, int] | None:
        """The priorities of the app's custom queues; None if it has only the default queue."""
        queues = None if self.app is None else self.app.config.custom_queues
        return None if queues is None else {queue.name: queue.priority for queue in queues}


def build_plan(draft: WorkflowDraft, on_error: OnError) -> WorkflowPlan:
    """Build the plan of a valid draft."""
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
            cases=tuple(draft.indexes_of(case.required) for case in policy.cases),
            optional=draft.indexes_of(policy.optional or ()),
        ),
    )


def _node_plan(draft: WorkflowDraft, index: int, node: AnyNode) -> NodePlan:
    if isinstance(node, SubWorkflowNode):
        fields: dict[str, Any] = {"is_subworkflow": True, "definition_key": node.workflow_def.definition_key}
    else:
        fields = _task_fields(draft, node)
    context_nodes = draft.indexes_of(node.workflow_ctx_from or ())
    return NodePlan(
        index=index,
        node_id=node.id_in(draft.name, index),
        name=node.name,
        kwargs_json=argument_codec(node).encode_keywords(node.kwargs),
        dependencies=draft.indexes_of(node.waits_for),
        args_from={name: draft.index_by_identity[id(source)] for name, source in node.args_from.items()},
        ctx_from=tuple(draft.nodes[source].id_in(draft.name, source) for source in context_nodes)
        if node.workflow_ctx_from
        else None,
        allow_failed_deps=node.allow_failed_deps,
        join=JoinType(node.join),
        min_success=node.min_success,
        **fields,
    )


def _task_fields(draft: WorkflowDraft, node: TaskNode[Any]) -> dict[str, Any]:
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


# Workflows in one line: `chain(fetch.s(url), parse.s())`, `group(resize.s(i) for i in ids).then(done.s())`.
# Their name and `definition_key` are made of the task names, unless they are given.


def chain(*calls: PartialCall[Any], name: str | None = None, definition_key: str | None = None) -> WorkflowSpec[Any]:
    """A workflow that runs the calls one after the other; each takes the result of the one before it.

    The result goes to the first parameter that is not given: as a value, or as a `TaskResult` if it is declared so. The
    result of the run is that of the last call.
    """
    _check_calls("chain", calls)
    nodes: list[AnyNode] = []
    for call in calls:
        nodes.append(call.node(after=nodes[-1:]))
    default = _default_key("chain", calls)
    output = nodes[-1] if nodes else None
    return WorkflowSpec(name or default, nodes, output=output, definition_key=definition_key or default)


def group(calls: Iterable[PartialCall[Any]], *, name: str | None = None, definition_key: str | None = None) -> Group:
    """A workflow that runs the calls in parallel; its result is a `TaskResult` by node id."""
    return Group(tuple(calls), name, definition_key)


class Group(WorkflowSpec[dict[str, TaskResult[Any, TaskError]]]):
    """The value of `group`: a workflow to start, or to continue with `then`."""

    def __init__(self, calls: tuple[PartialCall[Any], ...], name: str | None, definition_key: str | None) -> None:
        _check_calls("group", calls)
        self._calls = calls
        default = _default_key("group", calls)
        nodes = [call.node() for call in calls]
        super().__init__(name or default, nodes, definition_key=definition_key or default)

    def then(
        self, call: PartialCall[T], *, name: str | None = None, definition_key: str | None = None
    ) -> WorkflowSpec[T]:
        """A workflow that runs `call` after all calls of the group; see `PartialCall.node` for their results."""
        _check_calls("then", [call])
        nodes: list[AnyNode] = [each.node() for each in self._calls]
        last = call.node(after=nodes)
        default = _default_key("group", (*self._calls, call))
        return WorkflowSpec(name or default, [*nodes, last], output=last, definition_key=definition_key or default)


def _check_calls(kind: str, calls: Iterable[object]) -> None:
    """Raise for what is not a call, such as a task without `.s()`."""
    faults = (
        WorkflowValidationError(
            f"call {number} of {kind}: {type(call).__qualname__} is not a call of a task",
            code=ErrorCode.WORKFLOW_INVALID_NODE_ID,
            hint="write task.s(...)",
        )
        for number, call in enumerate(calls, start=1)
        if not isinstance(call, PartialCall)
    )
    _raise_faults(kind, faults, SourceLocation.of_caller())


def _default_key(kind: str, calls: Iterable[PartialCall[Any]]) -> str:
    """Made of the different task names, in order: a group of a thousand equal calls has the key of one."""
    names = dict.fromkeys(call.fn.task_name for call in calls)
    return f"{kind}:{'-'.join(names)}"[:MAX_NAME_LENGTH]
