"""Columns of the run list and the node tree, the header of a run, and the detail pane of a node."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from textual.content import Content

from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowRecord, WorkflowRow
from horsies_tui.format import format_age, format_elapsed, format_short_age, format_time, plural, safe, short_id
from horsies_tui.screens.workflows.graph import NODE_TONES, NodeLine, legend
from horsies_tui.theme import Glyph
from horsies_tui.widgets.row_list import Cell, Column, Tone

_HEADER_COLOURS = {
    WorkflowStatus.RUNNING: "$text-primary",
    WorkflowStatus.PAUSED: "$text-warning",
    WorkflowStatus.COMPLETED: "$text-success",
    WorkflowStatus.FAILED: "$text-error",
}


def run_header(detail: WorkflowDetail, now: datetime, *, is_entered: bool) -> list[Content]:
    """Return two lines: name, id and progress of the run; its error policy and duration."""
    run, counts = detail.run, detail.counts
    back = f"{Glyph.BACK} " if is_entered else ""
    progress = f"{run.status} {counts.get('COMPLETED', 0)}/{len(detail.nodes)}"
    colour = _HEADER_COLOURS.get(WorkflowStatus(run.status), "$text-muted")
    first = Content.assemble(
        safe(f" {back}{run.name} ", "bold"), (f"{short_id(run.id)} ", "$text-muted"), (progress, f"bold {colour}")
    )
    return [first, safe(f"  {_run_summary(run, now)}", "$text-muted")]


def _run_summary(run: WorkflowRecord, now: datetime) -> str:
    parts = [f"on_error={run.on_error}", _duration_text(run, now)]
    if run.generation > 1:
        parts.append(f"retried {plural(run.generation - 1, 'time')}")
    if run.parent_id is not None:
        parts.append(f"sub-workflow of {short_id(run.parent_id)}")
    if run.error_code is not None:
        parts.append(run.error_code)
    return "  ".join(parts)


def _duration_text(run: WorkflowRecord, now: datetime) -> str:
    started_at = run.started_at or run.created_at
    if run.completed_at is not None:
        return f"took {format_elapsed(run.completed_at - started_at)}"
    if run.paused_at is not None:
        return f"paused {format_age(now - run.paused_at)} ago"
    return f"for {format_age(now - started_at)}"


def node_details(line: NodeLine | None) -> tuple[str, list[str]]:
    """Return the title and lines of the node's detail pane."""
    if line is None:
        return "", []
    first = line.nodes[0]
    if len(line.nodes) > 1 and not line.is_pointer:
        return f"{len(line.nodes)} × {first.name}   {first.status}", [_error_text(first), "l expands", legend()]
    return f"[{first.index}] {first.name}   {_target_text(first)}   {first.status}", [
        _error_text(first) or line.note or _times_text(first),
        _settings_text(first),
        legend(),
    ]


def _target_text(node: NodeRow) -> str:
    if node.sub_workflow_id is not None:
        return f"run {short_id(node.sub_workflow_id)}"
    return "no task" if node.task_id is None else f"task {short_id(node.task_id)}"


def _error_text(node: NodeRow) -> str:
    return f"{node.error_code}: {node.error_message or ''}".rstrip(": ") if node.error_code else ""


def _times_text(node: NodeRow) -> str:
    if node.started_at is None:
        return ""
    finished = f"  finished {format_time(node.completed_at)}" if node.completed_at is not None else ""
    return f"started {format_time(node.started_at)}{finished}"


def _settings_text(node: NodeRow) -> str:
    parts = [
        f"node id {node.node_id}",
        f"queue {node.queue}" if node.queue else "",
        f"prio {node.priority}" if node.priority is not None else "",
        "runs even if dependencies failed" if node.allow_failed_deps else "",
    ]
    return "  ".join(part for part in parts if part)


# Columns

RUN_TONES: Final = {
    WorkflowStatus.PENDING: Tone.PLAIN,
    WorkflowStatus.RUNNING: Tone.BUSY,
    WorkflowStatus.PAUSED: Tone.WARN,
    WorkflowStatus.COMPLETED: Tone.GOOD,
    WorkflowStatus.FAILED: Tone.BAD,
    WorkflowStatus.CANCELLED: Tone.DIM,
    WorkflowStatus.EXPIRED: Tone.WARN,
}


def run_tone(status: str) -> Tone:
    return RUN_TONES.get(WorkflowStatus(status), Tone.PLAIN)


def _node_cell(line: NodeLine) -> Cell:
    return Cell(f"{line.indent}{line.text}", Tone.DIM if line.is_pointer else NODE_TONES[line.status])


def _note_cell(line: NodeLine, now: datetime) -> Cell:
    started_at = line.nodes[0].started_at
    if line.status == WorkflowTaskStatus.RUNNING and started_at is not None and not line.is_pointer:
        return Cell(format_age(now - started_at), Tone.BUSY)
    return Cell(line.note, NODE_TONES[line.status])


RUN_COLUMNS: Final[tuple[Column[WorkflowRow], ...]] = (
    Column("WORKFLOW", 10, lambda run: run.name, grows=3),
    Column("ID", 8, lambda run: short_id(run.id), tone=Tone.DIM),
    Column("STATUS", 9, lambda run: Cell(run.status, run_tone(run.status))),
    Column("DONE", 8, lambda run: f"{run.done}/{run.total}", right=True, drop_rank=1),
    Column("FAIL", 5, lambda run: f"{run.failed:,}" if run.failed else "", tone=Tone.BAD, right=True, drop_rank=2),
    Column("AGE", 4, value_at=lambda run, now: format_short_age(now - run.created_at), right=True),
    Column("ERROR", 14, lambda run: run.error_code or "", tone=Tone.BAD, grows=1, drop_rank=3),
)

NODE_COLUMNS: Final[tuple[Column[NodeLine], ...]] = (
    Column("NODE", 30, _node_cell, grows=3),
    Column("", 19, value_at=_note_cell, grows=1),
)
