"""What stands around the tree of a run: which run it is, and more about the node under the cursor."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from textual.content import Content

from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.reads.workflows import NodeRow, WorkflowDetail, WorkflowRecord, WorkflowRow
from horsies_tui.format import format_age, format_elapsed, format_short_age, format_time, plural, safe, short_id
from horsies_tui.screens.workflows.graph import NODE_TONES, NodeLine, legend
from horsies_tui.theme import Glyphs
from horsies_tui.widgets.row_list import Cell, Column, Tone

_COLOURS = {
    WorkflowStatus.RUNNING: "$text-primary",
    WorkflowStatus.PAUSED: "$text-warning",
    WorkflowStatus.COMPLETED: "$text-success",
    WorkflowStatus.FAILED: "$text-error",
}


def run_header(detail: WorkflowDetail | None, now: datetime, glyphs: Glyphs, *, is_entered: bool) -> Content:
    """Two lines: the run and how far it has come; what is done on errors, and how long it took."""
    if detail is None:
        return Content("")
    run, counts = detail.run, detail.counts
    back = f"{glyphs.back} " if is_entered else ""
    standing = f"{run.status} {counts.get('COMPLETED', 0)}/{len(detail.nodes)}"
    colour = _COLOURS.get(WorkflowStatus(run.status), "$text-muted")
    first = Content.assemble(
        safe(f" {back}{run.name} ", "bold"), (f"{short_id(run.id)} ", "$text-muted"), (standing, f"bold {colour}")
    )
    return Content("\n").join([first, safe(f"  {_run_summary(run, now)}", "$text-muted")])


def _run_summary(run: WorkflowRecord, now: datetime) -> str:
    parts = [f"on_error={run.on_error}", _duration_text(run, now)]
    if run.generation > 1:
        parts.append(f"begun again {plural(run.generation - 1, 'time')}")
    if run.parent_id is not None:
        parts.append(f"a step of {short_id(run.parent_id)}")
    if run.error_code is not None:
        parts.append(run.error_code)
    return "  ".join(parts)


def _duration_text(run: WorkflowRecord, now: datetime) -> str:
    began = run.started_at or run.created_at
    if run.completed_at is not None:
        return f"took {format_elapsed(run.completed_at - began)}"
    if run.paused_at is not None:
        return f"paused {format_age(now - run.paused_at)} ago"
    return f"for {format_age(now - began)}"


def node_details(line: NodeLine | None, glyphs: Glyphs) -> tuple[str, list[str]]:
    """A title and some lines about the node under the cursor."""
    if line is None:
        return "", []
    first = line.nodes[0]
    if len(line.nodes) > 1 and not line.is_pointer:
        return f"{len(line.nodes)} × {first.name}   {first.status}", [_error(first), "l shows them", legend(glyphs)]
    return f"[{first.index}] {first.name}   {_target_text(first)}   {first.status}", [
        _error(first) or line.note or _times(first),
        _settings(first),
        legend(glyphs),
    ]


def _target_text(node: NodeRow) -> str:
    if node.sub_workflow_id is not None:
        return f"run {short_id(node.sub_workflow_id)}"
    return "no task" if node.task_id is None else f"task {short_id(node.task_id)}"


def _error(node: NodeRow) -> str:
    return f"{node.error_code}: {node.error_message or ''}".rstrip(": ") if node.error_code else ""


def _times(node: NodeRow) -> str:
    if node.started_at is None:
        return ""
    ended = f"  ended {format_time(node.completed_at)}" if node.completed_at is not None else ""
    return f"started {format_time(node.started_at)}{ended}"


def _settings(node: NodeRow) -> str:
    parts = [
        f"node id {node.node_id}",
        f"queue {node.queue}" if node.queue else "",
        f"prio {node.priority}" if node.priority is not None else "",
        "also where dependencies failed" if node.allow_failed_deps else "",
    ]
    return "  ".join(part for part in parts if part)


# Runs and their nodes in columns.

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


def _failed(run: WorkflowRow) -> Cell:
    return Cell(f"{run.failed:,}" if run.failed else "", Tone.BAD)


def _node(line: NodeLine) -> Cell:
    tone = Tone.DIM if line.is_pointer else NODE_TONES[line.status]
    return Cell(f"{line.indent}{line.text}", tone)


def _note(line: NodeLine, now: datetime) -> Cell:
    began = line.nodes[0].started_at
    if line.status == WorkflowTaskStatus.RUNNING and began is not None and not line.is_pointer:
        return Cell(format_age(now - began), Tone.BUSY)
    return Cell(line.note, NODE_TONES[line.status])


RUN_COLUMNS: Final[tuple[Column[WorkflowRow], ...]] = (
    Column(title="FLOW", width=10, grows=3, cell=lambda run, _: Cell(run.name)),
    Column(title="ID", width=8, cell=lambda run, _: Cell(short_id(run.id), Tone.DIM)),
    Column(title="STATUS", width=9, cell=lambda run, _: Cell(run.status, run_tone(run.status))),
    Column(title="DONE", width=8, right=True, drop_rank=1, cell=lambda run, _: Cell(f"{run.done}/{run.total}")),
    Column(title="FAIL", width=5, right=True, drop_rank=2, cell=lambda run, _: _failed(run)),
    Column(
        title="AGE", width=4, right=True, ticks=True, cell=lambda run, now: Cell(format_short_age(now - run.created_at))
    ),
    Column(title="ERROR", width=14, grows=1, drop_rank=3, cell=lambda run, _: Cell(run.error_code or "", Tone.BAD)),
)

NODE_COLUMNS: Final[tuple[Column[NodeLine], ...]] = (
    Column(title="NODE", width=30, grows=3, cell=lambda line, _: _node(line)),
    Column(title="", width=19, grows=1, ticks=True, cell=_note),
)
