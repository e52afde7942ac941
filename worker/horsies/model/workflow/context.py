"""What a task is told of the workflow it runs in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.model.task_error import TaskError
    from horsies.model.task_result import TaskResult
    from horsies.model.workflow.info import SubWorkflowSummary
    from horsies.model.workflow.names import Keyed, Reads

T = TypeVar("T")

CONTEXT_PARAMETER: Final = "workflow_ctx"
META_PARAMETER: Final = "workflow_meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowMeta:
    """Where in which run a task stands; injected into a parameter `workflow_meta: WorkflowMeta`."""

    workflow_id: str
    task_index: int
    task_name: str


class Upstream(Protocol):
    """What is known of a node that has ended."""

    @property
    def summary(self) -> SubWorkflowSummary | None: ...

    def result(self, reads: Reads | None) -> TaskResult[Any, TaskError] | None:
        """Its result, the value read in this way where one is given; None where it has none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """The results of the nodes that `workflow_ctx_from` lists, and of no others.

    Looking up a node that is not listed raises `KeyError`, one without an id `WorkflowContextMissingIdError`.
    """

    workflow_id: str
    task_index: int
    task_name: str
    upstream: Mapping[str, Upstream] = field(repr=False)
    """By node id."""

    def result_for(self, node: Keyed[T]) -> TaskResult[T, TaskError]:
        key = node.key()
        result = self.upstream[key.node_id].result(key.reads)
        if result is None:
            raise KeyError(key.node_id)
        return cast("TaskResult[T, TaskError]", result)

    def has_result(self, node: Keyed[object]) -> bool:
        key = node.key()
        listed = self.upstream.get(key.node_id)
        return listed is not None and listed.result(key.reads) is not None

    def summary_for(self, node: Keyed[object]) -> SubWorkflowSummary:
        """How a sub-workflow ended; `KeyError` for a node that is none."""
        node_id = node.key().node_id
        summary = self.upstream[node_id].summary
        if summary is None:
            raise KeyError(node_id)
        return summary

    def has_summary(self, node: Keyed[object]) -> bool:
        listed = self.upstream.get(node.key().node_id)
        return listed is not None and listed.summary is not None
