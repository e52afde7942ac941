"""Tasks in columns: what each shows, how, and which go first where there is no room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from textual.content import Content
from textual.widgets import Static

from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies_ops.cli.output import to_json
from horsies_ops.reads.tasks import PayloadPreview, TaskDetail, TaskRecord, TaskSummary
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_elapsed, format_short_age, format_time, safe, sanitize, short_id
from horsies_tui.widgets.dialogs import SortOrder
from horsies_tui.widgets.page import compact_json, redact, task_arguments
from horsies_tui.widgets.row_list import Cell, Column, Tone

LIVE_STATUSES: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

STATUS_TONES: Final = {
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
    return None if task.last_heartbeat_at is None else now - task.last_heartbeat_at


def wait_time(task: TaskSummary, now: datetime) -> timedelta | None:
    """From when it was due until it was claimed, or until now where it still waits; None where it is not yet due."""
    if task.claimed_at is None and task.status != TaskStatus.PENDING:
        return None
    span = (task.claimed_at or now) - task.enqueued_at
    return span if span.total_seconds() >= 0 else None


def status_tone(status: str) -> Tone:
    return STATUS_TONES.get(TaskStatus(status), Tone.PLAIN)


def _status(task: TaskSummary, now: datetime) -> Cell:
    is_delayed = task.status == TaskStatus.PENDING and task.enqueued_at > now
    return Cell("DELAYED", Tone.DIM) if is_delayed else Cell(task.status, status_tone(task.status))


def _error_cell(task: TaskSummary, now: datetime) -> Cell:
    """What went wrong; else when it is due."""
    if task.error_code is not None:
        return Cell(task.error_code, Tone.BAD)
    if task.status == TaskStatus.PENDING and task.enqueued_at > now:
        return Cell(f"due in {format_age(task.enqueued_at - now)}", Tone.DIM)
    return Cell("")


def _attempt(task: TaskSummary) -> Cell:
    """Which attempt it is, of how many; the row counts those that have ended."""
    under_way = task.status == TaskStatus.RUNNING
    return Cell(f"{task.attempt_count + under_way}/{task.max_retries + 1}")


def _heartbeat_cell(task: TaskSummary, now: datetime) -> Cell:
    span = silence(task, now)
    return Cell("" if span is None else format_age(span), Tone.BUSY)


TASK_COLUMNS: Final[tuple[Column[TaskSummary], ...]] = (
    Column(title="ID", width=8, cell=lambda task, _: Cell(short_id(task.id))),
    Column(title="TASK", width=15, grows=4, cell=lambda task, _: Cell(task.name)),
    Column(title="QUEUE", width=8, grows=1, drop_rank=1, cell=lambda task, _: Cell(task.queue)),
    Column(title="STATUS", width=9, cell=_status),
    Column(title="ATT", width=4, drop_rank=2, cell=lambda task, _: _attempt(task)),
    Column(title="WORKER", width=8, drop_rank=3, cell=lambda task, _: Cell(short_id(task.worker_id), Tone.DIM)),
    Column(title="HB", width=6, drop_rank=4, right=True, ticks=True, cell=_heartbeat_cell),
    Column(
        title="WAIT",
        width=6,
        drop_rank=6,
        right=True,
        ticks=True,
        cell=lambda task, now: Cell(format_age(wait_time(task, now))),
    ),
    Column(title="PRIO", width=4, drop_rank=7, right=True, cell=lambda task, _: Cell(str(task.priority))),
    Column(
        title="AGE", width=4, right=True, ticks=True, cell=lambda task, now: Cell(format_short_age(now - task.sent_at))
    ),
    Column(title="ERROR", width=13, grows=3, drop_rank=1, ticks=True, cell=_error_cell),
)


# The orders that loaded tasks can be put in.

NEWEST_FIRST: Final = SortOrder(column="AGE", is_descending=False)
"""The order in which pages are read, and the only one that holds beyond what is loaded."""

SORT_COLUMNS: Final = ("AGE", "TASK", "QUEUE", "STATUS", "ATT", "HB", "WAIT", "PRIO", "ERROR")

_NEVER: Final = timedelta(-1)


def sort_keys(now: datetime) -> Mapping[str, Callable[[TaskSummary], Any]]:
    """What each order goes by; what a task does not have counts as less than anything that one has."""
    return {
        "AGE": lambda task: -task.id.int,
        "TASK": lambda task: task.name,
        "QUEUE": lambda task: task.queue,
        "STATUS": lambda task: task.status,
        "ATT": lambda task: task.attempt_count,
        "HB": lambda task: silence(task, now) or _NEVER,
        "WAIT": lambda task: wait_time(task, now) or _NEVER,
        "PRIO": lambda task: task.priority,
        "ERROR": lambda task: task.error_code or "",
    }


# What the tasks of a list were given, as far as a column holds it: read once a task, for it never changes.

ARGUMENTS_TITLE: Final = "ARGS"
MAX_PREVIEWS: Final = 5_000
"""So many are kept; beyond that it is cheaper to begin anew than to choose."""
MAX_PREVIEW_CHARACTERS: Final = 200


class ArgumentPreviews:
    """Masked as the settings say, and cut."""

    def __init__(self, settings: TuiConfig) -> None:
        self._settings = settings
        self._previews: dict[UUID, str] = {}

    @property
    def column(self) -> Column[TaskSummary]:
        return Column(title=ARGUMENTS_TITLE, width=16, grows=6, drop_rank=8, cell=self._cell)

    def missing(self, tasks: Iterable[TaskSummary]) -> list[UUID]:
        """Those of these tasks that nothing is known of yet."""
        return [task.id for task in tasks if task.id not in self._previews]

    def add(self, payloads: Mapping[UUID, PayloadPreview]) -> None:
        if len(self._previews) > MAX_PREVIEWS:
            self._previews.clear()
        self._previews |= {key: self._preview(payload) for key, payload in payloads.items()}

    def _preview(self, payload: PayloadPreview) -> str:
        document = payload.combined_arguments
        if document is None:
            return f"{payload.size / 1000:.0f} kB"
        return compact_json(document, self._settings)[:MAX_PREVIEW_CHARACTERS]

    def _cell(self, task: TaskSummary, _: datetime) -> Cell:
        return Cell(self._previews.get(task.id, ""), Tone.DIM)


# Tasks as documents that leave the screen: masked as the screen masks them, and without what only time makes.

VOLATILE_FIELDS: Final = ("age", "silence")
"""True when they were read, and no longer when the file is; the instants that they come from are there."""
EXPORTED_FIELDS: Final = tuple(each.name for each in fields(TaskSummary) if each.name not in VOLATILE_FIELDS)
"""Named one by one: a row that knows more than a list shows must not take that along unmasked."""


async def export_tasks(source: DataSource, tasks: Sequence[TaskSummary], settings: TuiConfig) -> list[dict[str, Any]]:
    """Each task with its arguments; those that are too long for a list are None."""
    payloads = await source.payload_previews([task.id for task in tasks])
    given = {key: redact(payload.combined_arguments, settings) for key, payload in payloads.items()}
    return [
        {name: to_json(getattr(task, name)) for name in EXPORTED_FIELDS} | {"arguments": given.get(task.id)}
        for task in tasks
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
        lines = [_history(task, now), _error(detail), _arguments_line(task, settings), _decision_line(detail)]
        title = safe(f" {short_id(task.id)} {task.name} ", cells=60)
        self._draw(title, Content("\n").join([safe(line) for line in lines if line]))

    def _draw(self, title: Content | str, text: Content) -> None:
        if (title, text) != self._drawn:
            self._drawn = (title, text)
            self.border_title = title
            # Its place is fixed whatever stands there; to lay out the screen anew takes as long as to draw a list.
            self.update(text, layout=False)


def _history(task: TaskRecord, now: datetime) -> str:
    where = f" on {task.worker_hostname}:{task.worker_pid}" if task.worker_hostname else ""
    waiting = f"   sent {format_time(task.sent_at)}  wait {format_elapsed(wait_time(task, now))}"
    if task.status in LIVE_STATUSES:
        return f"{task.status}{where}, silent {format_age(silence(task, now))}{waiting}"
    if task.finished_at is None:
        return f"{task.status}{waiting}"
    ran = f" after {format_elapsed(task.finished_at - task.started_at)}" if task.started_at else ""
    return f"{task.status} {format_age(now - task.finished_at)} ago{where}{ran}{waiting}"


def _error(detail: TaskDetail) -> str:
    task = detail.task
    if task.error_code is None:
        return ""
    last = next((attempt for attempt in detail.attempts if attempt.error_code == task.error_code), None)
    message = (last.error_message if last is not None else None) or task.failed_reason or ""
    return f"{task.error_code}: {sanitize(message, limit=400)}"


def _arguments_line(task: TaskRecord, settings: TuiConfig) -> str:
    until = f"   good until {format_time(task.good_until)}" if task.good_until else ""
    workflow = f"   workflow {short_id(task.workflow_id)}" if task.workflow_id else ""
    return f"args {compact_json(task_arguments(task), settings)}{until}{workflow}"


def _decision_line(detail: TaskDetail) -> str:
    if detail.recovery_decision is None or TaskStatus(detail.task.status) not in LIVE_STATUSES:
        return ""
    return (
        f"a sweep would: {detail.recovery_decision.decision} ({detail.recovery_decision.reason or 'no reason to act'})"
    )
