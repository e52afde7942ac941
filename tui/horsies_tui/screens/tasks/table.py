"""Tasks in columns: what each shows, how, and which go first where there is no room."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from textual.content import Content
from textual.widgets import Static

from horsies.model.task import TaskStatus
from horsies_ops.cli.output import to_json
from horsies_ops.reads.tasks import TaskSummary
from horsies_tui.format import age, clean, clock, safe, short_age, short_id, took
from horsies_tui.widgets.dialogs import Order
from horsies_tui.widgets.page import given, one_line, shown
from horsies_tui.widgets.row_list import Cell, Column, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.model.settings import TuiConfig
    from horsies_ops.reads.tasks import Payload, TaskDetail, TaskFacts
    from horsies_tui.data.source import Source


LIVE: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

TONES: Final = {
    TaskStatus.PENDING: Tone.PLAIN,
    TaskStatus.CLAIMED: Tone.BUSY,
    TaskStatus.RUNNING: Tone.BUSY,
    TaskStatus.COMPLETED: Tone.GOOD,
    TaskStatus.FAILED: Tone.BAD,
    TaskStatus.CANCELLED: Tone.DIM,
    TaskStatus.EXPIRED: Tone.WARN,
}
"""How a status looks, beside its word."""


def silence(task: TaskSummary, now: datetime) -> timedelta | None:
    """How long a live task has been silent; None for every other one."""
    return None if task.last_beat_at is None else now - task.last_beat_at


def waited(task: TaskSummary, now: datetime) -> timedelta | None:
    """From when it was due until it was claimed, or until now where it still waits; None where it is not yet due."""
    if task.claimed_at is None and task.status != TaskStatus.PENDING:
        return None
    span = (task.claimed_at or now) - task.enqueued_at
    return span if span.total_seconds() >= 0 else None


def tone_of(status: str) -> Tone:
    return TONES.get(TaskStatus(status), Tone.PLAIN)


def _status(task: TaskSummary, now: datetime) -> Cell:
    is_delayed = task.status == TaskStatus.PENDING and task.enqueued_at > now
    return Cell("DELAYED", Tone.DIM) if is_delayed else Cell(task.status, tone_of(task.status))


def _note(task: TaskSummary, now: datetime) -> Cell:
    """What went wrong; else when it is due."""
    if task.error_code is not None:
        return Cell(task.error_code, Tone.BAD)
    if task.status == TaskStatus.PENDING and task.enqueued_at > now:
        return Cell(f"due in {age(task.enqueued_at - now)}", Tone.DIM)
    return Cell("")


def _attempt(task: TaskSummary) -> Cell:
    """Which attempt it is, of how many; the row counts those that have ended."""
    under_way = task.status == TaskStatus.RUNNING
    return Cell(f"{task.attempt_count + under_way}/{task.max_retries + 1}")


def _silent(task: TaskSummary, now: datetime) -> Cell:
    span = silence(task, now)
    return Cell("" if span is None else age(span), Tone.BUSY)


TASK_COLUMNS: Final[tuple[Column[TaskSummary], ...]] = (
    Column(title="ID", width=8, cell=lambda task, _: Cell(short_id(task.id))),
    Column(title="TASK", width=15, grows=4, cell=lambda task, _: Cell(task.name)),
    Column(title="QUEUE", width=8, grows=1, rank=1, cell=lambda task, _: Cell(task.queue)),
    Column(title="STATUS", width=9, cell=_status),
    Column(
        title="ATT", width=4, rank=2, cell=lambda task, _: _attempt(task)
    ),
    Column(title="WORKER", width=8, rank=3, cell=lambda task, _: Cell(short_id(task.worker_id), Tone.DIM)),
    Column(
        title="HB", width=6, rank=4, right=True, ticks=True, cell=_silent
    ),
    Column(
        title="WAIT", width=6, rank=6, right=True, ticks=True, cell=lambda task, now: Cell(age(waited(task, now)))
    ),
    Column(title="PRIO", width=4, rank=7, right=True, cell=lambda task, _: Cell(str(task.priority))),
    Column(
        title="AGE", width=4, right=True, ticks=True, cell=lambda task, now: Cell(short_age(now - task.sent_at))
    ),
    Column(title="ERROR", width=13, grows=3, rank=1, ticks=True, cell=_note),
)  # fmt: skip


# The orders that loaded tasks can be put in.

NEWEST_FIRST: Final = Order(by="AGE", is_descending=False)
"""The order in which pages are read, and the only one that holds beyond what is loaded."""

NAMES: Final = ("AGE", "TASK", "QUEUE", "STATUS", "ATT", "HB", "WAIT", "PRIO", "ERROR")

_NEVER: Final = timedelta(-1)


def sorts(now: datetime) -> Mapping[str, Callable[[TaskSummary], Any]]:
    """What each order goes by; what a task does not have counts as less than anything that one has."""
    return {
        "AGE": lambda task: -task.id.int,
        "TASK": lambda task: task.name,
        "QUEUE": lambda task: task.queue,
        "STATUS": lambda task: task.status,
        "ATT": lambda task: task.attempt_count,
        "HB": lambda task: silence(task, now) or _NEVER,
        "WAIT": lambda task: waited(task, now) or _NEVER,
        "PRIO": lambda task: task.priority,
        "ERROR": lambda task: task.error_code or "",
    }


# What the tasks of a list were given, as far as a column holds it: read once a task, for it never changes.

TITLE: Final = "ARGS"
MOST: Final = 5_000
"""So many are kept; beyond that it is cheaper to begin anew than to choose."""
LONGEST: Final = 200


class Excerpts:
    """Masked as the settings say, and cut."""

    def __init__(self, settings: TuiConfig) -> None:
        self._settings = settings
        self._known: dict[UUID, str] = {}

    @property
    def column(self) -> Column[TaskSummary]:
        return Column(title=TITLE, width=16, grows=6, rank=8, cell=self._cell)

    def missing(self, tasks: Iterable[TaskSummary]) -> list[UUID]:
        """Those of these tasks that nothing is known of yet."""
        return [task.id for task in tasks if task.id not in self._known]

    def learn(self, payloads: Mapping[UUID, Payload]) -> None:
        if len(self._known) > MOST:
            self._known.clear()
        self._known |= {key: self._excerpt(payload) for key, payload in payloads.items()}

    def _excerpt(self, payload: Payload) -> str:
        document = payload.document
        if document is None:
            return f"{payload.size / 1000:.0f} kB"
        return one_line(document, self._settings)[:LONGEST]

    def _cell(self, task: TaskSummary, _: datetime) -> Cell:
        return Cell(self._known.get(task.id, ""), Tone.DIM)


# Tasks as documents that leave the screen: masked as the screen masks them, and without what only time makes.

OF_THE_MOMENT: Final = ("age", "silence")
"""True when they were read, and no longer when the file is; the instants that they come from are there."""
COLUMNS: Final = tuple(each.name for each in fields(TaskSummary) if each.name not in OF_THE_MOMENT)
"""Named one by one: a row that knows more than a list shows must not take that along unmasked."""


async def documents(source: Source, tasks: Sequence[TaskSummary], settings: TuiConfig) -> list[dict[str, Any]]:
    """Each task with its arguments; those that are too long for a list are None."""
    payloads = await source.payloads_of([task.id for task in tasks])
    given = {key: shown(payload.document, settings) for key, payload in payloads.items()}
    return [
        {name: to_json(getattr(task, name)) for name in COLUMNS} | {"arguments": given.get(task.id)} for task in tasks
    ]


# The few lines below the list that say more about the task under the cursor.


class TaskPreview(Static):
    """What happened to it, what went wrong, and what it was given."""

    _drawn: tuple[Content | str, Content] = ("", Content(""))

    def show(self, detail: TaskDetail | None, *, now: datetime, settings: TuiConfig) -> None:
        if detail is None:
            self._draw("", Content(""))
            return
        task = detail.task
        lines = [_history(task, now), _error(detail), _given(task, settings), _verdict(detail)]
        title = safe(f" {short_id(task.id)} {task.name} ", cells=60)
        self._draw(title, Content("\n").join([safe(line) for line in lines if line]))

    def _draw(self, title: Content | str, text: Content) -> None:
        if (title, text) != self._drawn:
            self._drawn = (title, text)
            self.border_title = title
            # Its place is fixed whatever stands there; to lay out the screen anew takes as long as to draw a list.
            self.update(text, layout=False)


def _history(task: TaskFacts, now: datetime) -> str:
    where = f" on {task.worker_hostname}:{task.worker_pid}" if task.worker_hostname else ""
    waiting = f"   sent {clock(task.sent_at)}  wait {took(waited(task, now))}"
    if task.status in LIVE:
        return f"{task.status}{where}, silent {age(silence(task, now))}{waiting}"
    if task.finished_at is None:
        return f"{task.status}{waiting}"
    ran = f" after {took(task.finished_at - task.started_at)}" if task.started_at else ""
    return f"{task.status} {age(now - task.finished_at)} ago{where}{ran}{waiting}"


def _error(detail: TaskDetail) -> str:
    task = detail.task
    if task.error_code is None:
        return ""
    last = next((attempt for attempt in detail.attempts if attempt.error_code == task.error_code), None)
    message = (last.error_message if last is not None else None) or task.failed_reason or ""
    return f"{task.error_code}: {clean(message, limit=400)}"


def _given(task: TaskFacts, settings: TuiConfig) -> str:
    until = f"   good until {clock(task.good_until)}" if task.good_until else ""
    workflow = f"   workflow {short_id(task.workflow_id)}" if task.workflow_id else ""
    return f"args {one_line(given(task), settings)}{until}{workflow}"


def _verdict(detail: TaskDetail) -> str:
    if detail.verdict is None or TaskStatus(detail.task.status) not in LIVE:
        return ""
    return f"a sweep would: {detail.verdict.decision} ({detail.verdict.reason or 'no reason to act'})"
