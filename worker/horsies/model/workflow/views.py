"""Public values of workflows: context passed to tasks, views of a run, and errors of starts and handles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from pydantic import JsonValue

from horsies.model.result import Result
from horsies.model.task_result import TaskError, TaskResult
from horsies.model.workflow.plan import NodeRef, ValueLoader, WorkflowStatus, WorkflowTaskStatus

T = TypeVar("T")

CONTEXT_PARAMETER: Final = "workflow_ctx"
META_PARAMETER: Final = "workflow_meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowMeta:
    """The run and node of a task; injected into a parameter `workflow_meta: WorkflowMeta`."""

    workflow_id: str
    task_index: int
    task_name: str


class UpstreamNode(Protocol):
    """A finished node."""

    @property
    def summary(self) -> SubWorkflowSummary | None: ...

    def result(self, result_codec: ValueLoader | None) -> TaskResult[Any, TaskError] | None:
        """Return its result, decoded with `result_codec` if given; None if it has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """The results of the nodes listed in `workflow_ctx_from`.

    Looking up another node raises `KeyError`; a node without an id raises `WorkflowContextMissingIdError`.
    """

    workflow_id: str
    task_index: int
    task_name: str
    upstream: Mapping[str, UpstreamNode] = field(repr=False)
    """By node id."""

    def result_for(self, node: NodeRef[T]) -> TaskResult[T, TaskError]:
        key = node.key()
        result = self.upstream[key.node_id].result(key.result_codec)
        if result is None:
            raise KeyError(key.node_id)
        return cast("TaskResult[T, TaskError]", result)

    def has_result(self, node: NodeRef[object]) -> bool:
        key = node.key()
        listed = self.upstream.get(key.node_id)
        return listed is not None and listed.result(key.result_codec) is not None

    def summary_for(self, node: NodeRef[object]) -> SubWorkflowSummary:
        """Return the summary of a sub-workflow; raises `KeyError` for other nodes."""
        node_id = node.key().node_id
        summary = self.upstream[node_id].summary
        if summary is None:
            raise KeyError(node_id)
        return summary

    def has_summary(self, node: NodeRef[object]) -> bool:
        listed = self.upstream.get(node.key().node_id)
        return listed is not None and listed.summary is not None


# Views of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowSummary:
    """The outcome of a sub-workflow and its node counts."""

    status: WorkflowStatus
    output: JsonValue
    """The value of its output node; None if it has none or did not succeed."""
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    skipped_tasks: int
    error_summary: str | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> SubWorkflowSummary:
        """Parse the output of `document`; raises `ValueError` if it is invalid."""
        try:
            fields: dict[str, Any] = {**document, "status": WorkflowStatus(document["status"])}
            return cls(**fields)
        except (KeyError, TypeError) as missing:
            raise ValueError(f"invalid sub-workflow summary: {missing}") from None

    def document(self) -> dict[str, JsonValue]:
        """Convert to a JSON object."""
        return asdict(self) | {"status": self.status.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskInfo:
    """A node of a run at the time of the read; `result` is None until it has finished with one."""

    node_id: str
    index: int
    name: str
    status: WorkflowTaskStatus
    task_id: str | None = None
    sub_workflow_id: str | None = None
    result: TaskResult[object, TaskError] | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None


# Errors of starts and handles


class WorkflowStartErrorCode(StrEnum):
    """Why a run was not started."""

    BROKER_NOT_CONFIGURED = "BROKER_NOT_CONFIGURED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStartError:
    """A failed start; starting again with the same id stores the run at most once."""

    code: WorkflowStartErrorCode
    message: str
    retryable: bool = False
    workflow_name: str | None = None
    workflow_id: str | None = None
    exception: BaseException | None = None


WorkflowStartResult: TypeAlias = Result[T, WorkflowStartError]


class HandleErrorCode(StrEnum):
    """Why an operation on a handle failed."""

    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    WORKFLOW_NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    WORKFLOW_NOT_ROOT = "WORKFLOW_NOT_ROOT"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"
    LOOP_RUNNER_FAILED = "LOOP_RUNNER_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOperationError:
    """A failed operation on a handle."""

    code: HandleErrorCode
    message: str
    retryable: bool = False
    workflow_id: str | None = None
    exception: BaseException | None = None


HandleResult: TypeAlias = Result[T, HandleOperationError]
