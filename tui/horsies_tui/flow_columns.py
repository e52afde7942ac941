"""Runs and their nodes in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.model.workflow.status import WorkflowStatus, WorkflowTaskStatus
from horsies_tui.flow_words import TONES
from horsies_tui.format import age, short_age, short_id
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_ops.reads.workflows import WorkflowRow
    from horsies_tui.flow_lines import FlowLine

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


def _node(line: FlowLine) -> Cell:
    tone = Tone.DIM if line.is_pointer else TONES[line.status]
    return Cell(f"{line.indent}{line.text}", tone)


def _note(line: FlowLine, now: datetime) -> Cell:
    began = line.nodes[0].started_at
    if line.status == WorkflowTaskStatus.RUNNING and began is not None and not line.is_pointer:
        return Cell(age(now - began), Tone.BUSY)
    return Cell(line.note, TONES[line.status])


RUN_COLUMNS: Final[tuple[Column[WorkflowRow], ...]] = (
    Column(title="FLOW", width=10, grows=3, cell=lambda run, _: Cell(run.name)),
    Column(title="ID", width=8, cell=lambda run, _: Cell(short_id(run.id), Tone.DIM)),
    Column(title="STATUS", width=9, cell=lambda run, _: Cell(run.status, run_tone(run.status))),
    Column(title="DONE", width=8, right=True, rank=1, cell=lambda run, _: Cell(f"{run.done}/{run.total}")),
    Column(title="FAIL", width=5, right=True, rank=2, cell=lambda run, _: _failed(run)),
    Column(
        title="AGE", width=4, right=True, ticks=True, cell=lambda run, now: Cell(short_age(now - run.created_at))
    ),
    Column(title="ERROR", width=14, grows=1, rank=3, cell=lambda run, _: Cell(run.error_code or "", Tone.BAD)),
)  # fmt: skip

NODE_COLUMNS: Final[tuple[Column[FlowLine], ...]] = (
    Column(title="NODE", width=30, grows=3, cell=lambda line, _: _node(line)),
    Column(title="", width=19, grows=1, ticks=True, cell=_note),
)
