"""Queues in columns, and the orders that they can be put in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from horsies_tui.format import age
from horsies_tui.health import QueueHealth, queue_health
from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from horsies_ops.reads.queues import QueueRow
    from horsies_tui.glyphs import Glyphs

_TONES = {
    QueueHealth.OK: Tone.GOOD,
    QueueHealth.BACKLOG: Tone.WARN,
    QueueHealth.PAUSED: Tone.DIM,
    QueueHealth.NOBODY: Tone.BAD,
}
_STEP = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """A queue, and since when its oldest task has been due, by the database's clock."""

    row: QueueRow
    due_since: datetime | None

    @classmethod
    def of(cls, row: QueueRow, now: datetime) -> QueueLine:
        return cls(row=row, due_since=None if row.oldest_due_age is None else now - row.oldest_due_age)


def _oldest(line: QueueLine) -> int:
    """In steps: queues that are well would change places every second."""
    return 0 if line.row.oldest_due_age is None else line.row.oldest_due_age // _STEP


QUEUE_SORTS: Final[Mapping[str, Callable[[QueueLine], Any]]] = {
    "OLDEST": _oldest,
    "QUEUE": lambda line: line.row.name,
    "PRI": lambda line: -1 if line.row.priority is None else line.row.priority,
    "PEND": lambda line: line.row.pending,
    "RUN": lambda line: line.row.running,
    "DONE/m": lambda line: line.row.finished_last_minute,
    "FAIL/m": lambda line: line.row.failed_last_minute,
}


def queue_columns(glyphs: Glyphs) -> tuple[Column[QueueLine], ...]:
    signs = {QueueHealth.BACKLOG: glyphs.warn, QueueHealth.PAUSED: glyphs.paused, QueueHealth.NOBODY: glyphs.bad}

    def state(line: QueueLine, _: datetime) -> Cell:
        health = queue_health(line.row)
        return Cell(f"{signs[health]} {health}" if health in signs else health, _TONES[health])

    return (
        Column(title="QUEUE", width=13, grows=1, cell=lambda line, _: Cell(line.row.name)),
        Column(title="PRI", width=3, right=True, rank=4, cell=lambda line, _: Cell(_or_dash(line.row.priority))),
        Column(title="PEND", width=6, right=True, cell=lambda line, _: _count(line.row.pending)),
        Column(title="DUE+", width=5, right=True, rank=3, cell=lambda line, _: _count(line.row.delayed)),
        Column(title="CLAIM", width=5, right=True, rank=2, cell=lambda line, _: _count(line.row.claimed)),
        Column(title="RUN/CAP", width=8, right=True, cell=lambda line, _: Cell(_of_cap(line.row))),
        Column(title="OLDEST", width=7, right=True, ticks=True, cell=_waiting),
        Column(title="DONE/m", width=6, right=True, rank=1, cell=lambda line, _: _count(_done(line.row))),
        Column(
            title="FAIL/m", width=6, right=True, rank=1,
            cell=lambda line, _: _count(line.row.failed_last_minute, tone=Tone.BAD),
        ),
        Column(title="STATE", width=9, cell=state),
    )  # fmt: skip


def _waiting(line: QueueLine, now: datetime) -> Cell:
    is_late = queue_health(line.row) is QueueHealth.BACKLOG
    waited = None if line.due_since is None else now - line.due_since
    return Cell(age(waited), Tone.WARN if is_late else Tone.PLAIN)


def _count(number: int, *, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(f"{number:,}", tone if number else Tone.DIM)


def _of_cap(queue: QueueRow) -> str:
    return f"{queue.running:,}/{_or_dash(queue.max_concurrency)}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _done(queue: QueueRow) -> int:
    return queue.finished_last_minute - queue.failed_last_minute
