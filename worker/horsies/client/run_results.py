"""From what is stored of a run to the results that its handle gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from horsies.client.outcome import failed
from horsies.client.workflow.declared import reads_of
from horsies.client.workflow.imported import DEFINITIONS
from horsies.codec.result import AnyResult, read_result, result_of
from horsies.model.codes import OutcomeCode, RetrievalCode
from horsies.model.task_result import TaskResult
from horsies.model.workflow.info import WorkflowTaskInfo
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horsies.codec.value import Value
    from horsies.model.workflow.names import Reads
    from horsies.store.flow_reads import NodeInfoRow, RunOutcomeRow

_CODES = {
    WorkflowStatus.FAILED: OutcomeCode.WORKFLOW_FAILED,
    WorkflowStatus.CANCELLED: OutcomeCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: OutcomeCode.WORKFLOW_EXPIRED,
}


def run_result(
    workflow_id: str, row: RunOutcomeRow | None, nodes: Sequence[NodeInfoRow], ok_of: Callable[[str], Value | None]
) -> AnyResult:
    """The result of a run that is terminal or paused, or that there is no such run."""
    if row is None:
        return failed(RetrievalCode.WORKFLOW_NOT_FOUND, f"there is no workflow {workflow_id}")
    status = WorkflowStatus(row.status)
    if status is WorkflowStatus.PAUSED:
        return failed(
            OutcomeCode.WORKFLOW_PAUSED,
            f"workflow {workflow_id} is paused{_because(row.error)}; resume() lets it go on",
        )
    if status is not WorkflowStatus.COMPLETED:
        if row.error is not None:
            return read_result(f'{{"err":{row.error}}}')
        return failed(_CODES[status], f"workflow {workflow_id} is {status}")
    if row.document is None:
        return failed(RetrievalCode.RESULT_NOT_AVAILABLE, f"workflow {workflow_id} left no result")
    if row.is_map:
        return _map_result(row.document, {node.node_id: node for node in nodes}, ok_of)
    return read_result(row.document, _reads(row.output_name, row.output_definition_key, ok_of))


def node_result(node: NodeInfoRow, ok_of: Callable[[str], Value | None]) -> AnyResult | None:
    """What a node ended with; None where nothing is stored."""
    if node.document is None:
        return None
    return read_result(node.document, _reads_of(node, ok_of))


def node_info(node: NodeInfoRow, ok_of: Callable[[str], Value | None]) -> WorkflowTaskInfo:
    return WorkflowTaskInfo(
        node_id=node.node_id,
        index=node.task_index,
        name=node.task_name,
        status=WorkflowTaskStatus(node.status),
        task_id=None if node.task_id is None else str(node.task_id),
        sub_workflow_id=None if node.sub_workflow_id is None else str(node.sub_workflow_id),
        result=node_result(node, ok_of),
        started_at=node.started_at,
        completed_at=node.completed_at,
    )


def _map_result(document: str, nodes: Mapping[str, NodeInfoRow], ok_of: Callable[[str], Value | None]) -> AnyResult:
    """The results of the last nodes, by id, each read as its task or its definition declares."""
    stored = json.loads(document)["ok"]
    results: dict[str, AnyResult] = {}
    for node_id, each in stored.items():
        node = nodes.get(node_id)
        results[node_id] = result_of(each, None if node is None else _reads_of(node, ok_of))
    return TaskResult(ok=results)


def _reads_of(node: NodeInfoRow, ok_of: Callable[[str], Value | None]) -> Reads | None:
    return _reads(None if node.is_subworkflow else node.task_name, node.definition_key, ok_of)


def _reads(task_name: str | None, definition_key: str | None, ok_of: Callable[[str], Value | None]) -> Reads | None:
    """How what a task, or else a sub-workflow, left is read; None where this process does not know it."""
    if task_name is not None:
        return ok_of(task_name)
    definition = None if definition_key is None else DEFINITIONS.find(definition_key)
    return None if definition is None else reads_of(definition)


def _because(error: str | None) -> str:
    if error is None:
        return ""
    stored = json.loads(error)
    return f" after {stored.get('error_code')}: {stored.get('message')}"
