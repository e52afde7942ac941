"""The runs that the invented system begins with, each as far as it has come by now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.task import TaskStatus
from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus
from horsies_tui.demo.blueprints import CRAWL, DIGEST, NIGHTLY, ONBOARD, Blueprint
from horsies_tui.demo.catalogue import KINDS, WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from horsies_ops.reads.workflows import NodeRow, WorkflowFacts
    from horsies_tui.demo.system import System

_KINDS = {kind.name: kind for kind in KINDS}
_STATUSES = {
    "D": WorkflowTaskStatus.COMPLETED,
    "F": WorkflowTaskStatus.FAILED,
    "S": WorkflowTaskStatus.SKIPPED,
    "R": WorkflowTaskStatus.RUNNING,
    "E": WorkflowTaskStatus.ENQUEUED,
    "P": WorkflowTaskStatus.PENDING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A run that began so long ago; a letter for each node says where it stands."""

    blueprint: Blueprint
    ago_s: float
    nodes: str
    status: WorkflowStatus = WorkflowStatus.RUNNING
    took_s: float = 0
    child: Past | None = None


PASTS: Final = (
    Past(blueprint=NIGHTLY, ago_s=93_600, nodes="DDPPPPPPPP", status=WorkflowStatus.PAUSED),
    Past(blueprint=ONBOARD, ago_s=2400, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=9),
    Past(blueprint=ONBOARD, ago_s=1900, nodes="DDSS", status=WorkflowStatus.CANCELLED, took_s=4),
    Past(
        blueprint=NIGHTLY,
        ago_s=1320,
        nodes="DDDDDDRDPP",
        child=Past(blueprint=CRAWL, ago_s=1300, nodes="D" + "D" * 130 + "F" * 6 + "R" * 4 + "E" * 40 + "PP"),
    ),
    Past(blueprint=ONBOARD, ago_s=700, nodes="DDDD", status=WorkflowStatus.COMPLETED, took_s=11),
    Past(blueprint=DIGEST, ago_s=180, nodes="DFDSDSDDDS", status=WorkflowStatus.FAILED, took_s=63),
    Past(blueprint=DIGEST, ago_s=95, nodes="DFRPDPDPPP"),
    Past(blueprint=ONBOARD, ago_s=41, nodes="DDRP"),
    Past(blueprint=ONBOARD, ago_s=9, nodes="RPPP"),
)


def remember(system: System) -> None:
    """Put them into the system."""
    for past in PASTS:
        _remember(system, past)


def _remember(system: System, past: Past, parent: WorkflowFacts | None = None) -> UUID:
    flows, began = system.flows, system.now() - timedelta(seconds=past.ago_s)
    run = flows.begin(past.blueprint, at=began, parent=parent)
    child = None if past.child is None else _remember(system, past.child, run)
    nodes = {
        node.index: _as_of_now(system, run, node, _STATUSES[letter], child)
        for node, letter in zip(flows.nodes[run.id], past.nodes, strict=True)
    }
    flows.set_nodes(run.id, nodes)
    ended = began + timedelta(seconds=past.took_s) if past.status.is_terminal else None
    paused = began + timedelta(seconds=60) if past.status is WorkflowStatus.PAUSED else None
    code = _first_error(nodes) if ended is not None else None
    flows.change(run.id, status=past.status, completed_at=ended, paused_at=paused, error_code=code)
    return run.id


def _first_error(nodes: Mapping[int, NodeRow]) -> str | None:
    return next((node.error_code for node in nodes.values() if node.error_code), None)


def _as_of_now(
    system: System, run: WorkflowFacts, node: NodeRow, status: WorkflowTaskStatus, child: UUID | None
) -> NodeRow:
    if status in {WorkflowTaskStatus.PENDING, WorkflowTaskStatus.SKIPPED}:
        return replace(node, status=status)
    began = run.created_at + timedelta(seconds=2 * len(node.dependencies[:3]))
    if node.is_subworkflow:
        return replace(node, status=status, sub_workflow_id=child, started_at=began)
    kind = _KINDS[node.name]
    task_id = system.send(kind, at=began, workflow_id=run.id).id
    took = timedelta(seconds=kind.run_s * (0.6 + node.index % 7 / 10))
    if status is not WorkflowTaskStatus.ENQUEUED:
        _run(system, task_id, began, status, ended=began + took)
    task = system.tasks[task_id]
    return replace(
        node, status=status, task_id=task_id, started_at=task.started_at, completed_at=task.finished_at,
        error_code=task.error_code, error_message=task.failed_reason,
    )  # fmt: skip


def _run(system: System, task_id: UUID, began: datetime, status: WorkflowTaskStatus, *, ended: datetime) -> None:
    member = WORKERS[0]
    system.move(
        task_id, TaskStatus.RUNNING, claimed_at=began, started_at=began, last_beat_at=system.now(), claim_token=1,
        worker_id=member.id, worker_hostname=member.hostname, worker_pid=member.pid,
    )  # fmt: skip
    kind = _KINDS[system.tasks[task_id].name]
    if status is WorkflowTaskStatus.COMPLETED:
        system.move(
            task_id, TaskStatus.COMPLETED, finished_at=ended, last_beat_at=None, attempt_count=1,
            result_json='{"ok": true}',
        )  # fmt: skip
    elif status is WorkflowTaskStatus.FAILED:
        system.move(
            task_id, TaskStatus.FAILED, finished_at=ended, last_beat_at=None, attempt_count=1, error_code=kind.error,
            failed_reason=kind.message,
        )  # fmt: skip
