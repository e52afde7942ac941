"""Stale tasks in columns."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.verdicts import Decision
from horsies_tui.format import age, short_id
from horsies_tui.stale import Candidate, owner, verdict
from horsies_tui.task_columns import tone_of
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from datetime import datetime

_TONES = {
    Decision.REQUEUE: Tone.GOOD,
    Decision.RETRY: Tone.WARN,
    Decision.FAIL: Tone.BAD,
    Decision.EXPIRE: Tone.WARN,
    Decision.HOLD: Tone.DIM,
    Decision.LEAVE: Tone.DIM,
}


def _over(candidate: Candidate, now: datetime) -> Cell:
    over = candidate.over(now)
    if over is None:
        return Cell("-", Tone.DIM)
    if over < timedelta(0):
        return Cell(f"-{age(-over)}", Tone.DIM)
    return Cell(f"+{age(over)}", Tone.BAD)


def _verdict(candidate: Candidate, now: datetime) -> Cell:
    tone = Tone.WARN if candidate.is_alive else _TONES[candidate.task.decision]
    return Cell(verdict(candidate, now), Tone.DIM if candidate.is_near else tone)


STALE_COLUMNS: Final[tuple[Column[Candidate], ...]] = (
    Column(title="ID", width=8, cell=lambda each, _: Cell(short_id(each.id))),
    Column(title="TASK", width=11, grows=3, cell=lambda each, _: Cell(each.task.task_name)),
    Column(title="QUEUE", width=8, grows=1, rank=3, cell=lambda each, _: Cell(each.task.queue_name)),
    Column(title="STATE", width=7, cell=lambda each, _: Cell(each.task.state, tone_of(each.task.state))),
    Column(title="SILENT", width=6, right=True, ticks=True, cell=lambda each, now: Cell(age(each.silence(now)))),
    Column(title="OVER", width=7, right=True, ticks=True, cell=_over),
    Column(title="WORKER", width=17, rank=1, ticks=True, cell=lambda each, now: Cell(owner(each, now), Tone.DIM)),
    Column(title="VERDICT", width=13, grows=1, ticks=True, cell=_verdict),
    Column(title="REASON", width=14, rank=4, cell=lambda each, _: Cell(each.task.reason, Tone.DIM)),
)
