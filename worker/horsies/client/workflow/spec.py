"""A workflow that can be started: checked, its nodes in their places, nothing in it can be changed any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from horsies.client.workflow.arguments import argument_faults
from horsies.client.workflow.draft import Draft
from horsies.client.workflow.identity import identity_faults
from horsies.client.workflow.nodes import TaskNode
from horsies.client.workflow.placement import ownership_faults, placement_faults
from horsies.client.workflow.planning import plan_of
from horsies.client.workflow.structure import ending_faults, graph_faults, join_faults, naming_faults
from horsies.errors import ErrorCode, SourceLocation, WorkflowValidationError, raise_together
from horsies.model.ids import parse_id
from horsies.model.result import Err
from horsies.model.workflow.calls import WorkflowStartError, WorkflowStartErrorCode
from horsies.model.workflow.plan import OnError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horsies.client.broker import PostgresBroker
    from horsies.client.run_handle import WorkflowHandle
    from horsies.client.task_function import Host
    from horsies.client.workflow.nodes import AnyNode
    from horsies.client.workflow.policies import SuccessPolicy
    from horsies.model.workflow.calls import WorkflowStartResult
    from horsies.model.workflow.names import NodeKey
    from horsies.model.workflow.plan import WorkflowPlan

T = TypeVar("T", default=Any)

CHECKS = (naming_faults, ownership_faults, graph_faults, join_faults, argument_faults, placement_faults, ending_faults)


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
        app: Host | None = None,
        declared: object = Any,
        location: SourceLocation | None = None,
    ) -> None:
        written = list(tasks)
        where = location or SourceLocation.of_caller()
        _raise(name, identity_faults(written), where)
        draft = Draft(
            name=name,
            definition_key=definition_key,
            nodes=tuple(node.frozen_at(index) for index, node in enumerate(written)),
            places={id(node): index for index, node in enumerate(written)},
            on_error=on_error,
            output=output,
            success_policy=success_policy,
            declared=declared,
            host=app or _host_of(written),
        )
        _raise(name, (fault for check in CHECKS for fault in check(draft)), where)
        self.name = name
        self.definition_key = definition_key
        self.on_error = OnError(on_error)
        self.tasks = draft.nodes
        self._plan = plan_of(draft, self.on_error)
        self.output = None if self._plan.output_index is None else self.tasks[self._plan.output_index]
        self.success_policy = success_policy
        self._host = cast("Host", draft.host)
        for index, node in enumerate(written):
            node.place(index)

    @property
    def host(self) -> Host:
        """The app whose runs these are."""
        return self._host

    def plan(self) -> WorkflowPlan:
        """What a run of it is made of."""
        return self._plan

    def start(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Store a run; `Ok` means that it is committed. The id of a run that exists gives the handle of that run."""
        from horsies.client.flows import blocking_start

        return blocking_start(self.start_async(workflow_id), self._plan)

    async def start_async(self, workflow_id: str | None = None) -> WorkflowStartResult[WorkflowHandle[T]]:
        return await self.start_on(None, workflow_id)

    async def start_on(
        self, broker: PostgresBroker | None, workflow_id: str | None = None
    ) -> WorkflowStartResult[WorkflowHandle[T]]:
        """The same on this broker; None is that of the app."""
        if self._host.are_sends_suppressed():
            return self._refusal("sends are suppressed in this process")
        try:
            known = None if workflow_id is None else parse_id(str(workflow_id))
        except ValueError as refused:
            return self._refusal(str(refused), code=ErrorCode.WORKFLOW_INVALID_ID)
        from horsies.client.flows import start

        return await start(broker or self._host.get_broker(), self._plan, known)

    def retry_start(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T]]:
        """Start again what a failed start was about, under the same id: it is stored at most once."""
        from horsies.client.flows import blocking_start

        return blocking_start(self.retry_start_async(error), self._plan)

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


def _host_of(nodes: Iterable[AnyNode]) -> Host | None:
    """The app of the first task."""
    return next((node.fn.host for node in nodes if isinstance(node, TaskNode)), None)


def _raise(name: str, faults: Iterable[WorkflowValidationError], where: SourceLocation | None) -> None:
    found = list(faults)
    for fault in found:
        fault.location = fault.location or where
    raise_together(f"workflow {name!r}", found)
