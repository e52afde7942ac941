"""Task list: columns, sort orders, argument previews, export documents, and the preview pane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from textual.content import Content

from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies.model.waiting import WaitCause
from horsies_ops.cli.output import to_json
from horsies_ops.reads.tasks import PayloadPreview, TaskDetail, TaskRecord, TaskSummary
from horsies_ops.source import DataSource
from horsies_tui.format import format_age, format_elapsed, format_short_age, format_time, safe, sanitize, short_id
from horsies_tui.widgets.dialogs import SortOrder
from horsies_tui.widgets.page import coloured_json, compact_json, redact, stored_json
from horsies_tui.widgets.row_list import Cell, Column, RowList, Tone

LIVE_STATUSES: Final = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

STATUS_TONES: Final = {
    TaskStatus.PENDING: Tone.PLAIN,
    TaskStatus.CLAIMED: Tone.BUSY,
    TaskStatus.RUNNING: Tone.BUSY,
    TaskStatus.COMPLETED: Tone.DIM,
    TaskStatus.FAILED: Tone.BAD,
    TaskStatus.CANCELLED: Tone.DIM,
    TaskStatus.EXPIRED: Tone.WARN,
}

ARGUMENTS_TITLE: Final = "ARGS"
MAX_PREVIEWS: Final = 5_000
"""The preview cache is cleared beyond this size, which is cheaper than choosing entries to evict."""
MAX_PREVIEW_CHARACTERS: Final = 200

VOLATILE_FIELDS: Final = ("age", "silence")
"""Only true at the time of the read, so not exported; the timestamps they come from are."""
EXPORTED_FIELDS: Final = tuple(field.name for field in fields(TaskSummary) if field.name not in VOLATILE_FIELDS)
"""Explicit, so that a row with more fields than the list shows cannot export them unredacted."""


# Columns


def silence(task: TaskSummary, now: datetime) -> timedelta | None:
    """Return the time since a live task's last heartbeat; None for other tasks."""
    return None if task.last_heartbeat_at is None else now - task.last_heartbeat_at


def wait_time(task: TaskSummary, now: datetime) -> timedelta | None:
    """Return the time from due to claimed, or to now if still pending; None if not due yet."""
    if task.claimed_at is None and task.status != TaskStatus.PENDING:
        return None
    span = (task.claimed_at or now) - task.enqueued_at
    return span if span.total_seconds() >= 0 else None


def status_tone(status: str) -> Tone:
    return STATUS_TONES.get(TaskStatus(status), Tone.PLAIN)


def _status_cell(task: TaskSummary, now: datetime) -> Cell:
    is_delayed = task.status == TaskStatus.PENDING and task.enqueued_at > now
    return Cell("DELAYED", Tone.DIM) if is_delayed else Cell(task.status, status_tone(task.status))


def _error_cell(task: TaskSummary, now: datetime) -> Cell | str:
    """Show the error code or, for delayed tasks, when they are due."""
    if task.error_code is not None:
        return Cell(task.error_code, Tone.BAD)
    if task.status == TaskStatus.PENDING and task.enqueued_at > now:
        return Cell(f"due in {format_age(task.enqueued_at - now)}", Tone.DIM)
    return ""


def _attempt_text(task: TaskSummary) -> str:
    # attempt_count counts finished attempts only.
    is_running = task.status == TaskStatus.RUNNING
    return f"{task.attempt_count + is_running}/{task.max_retries + 1}"


def _heartbeat_text(task: TaskSummary, now: datetime) -> str:
    age = silence(task, now)
    return "" if age is None else format_age(age)


TASK_COLUMNS: Final[tuple[Column[TaskSummary], ...]] = (
    Column("ID", 8, lambda task: short_id(task.id)),
    Column("TASK", 15, lambda task: task.name, grows=4),
    Column("QUEUE", 8, lambda task: task.queue, grows=1, drop_rank=1),
    Column("STATUS", 9, value_at=_status_cell),
    Column("ATT", 4, _attempt_text, drop_rank=2),
    Column("WORKER", 8, lambda task: short_id(task.worker_id), tone=Tone.DIM, drop_rank=3),
    Column("HB", 6, value_at=_heartbeat_text, tone=Tone.BUSY, drop_rank=4, right=True),
    Column("WAIT", 6, value_at=lambda task, now: format_age(wait_time(task, now)), drop_rank=6, right=True),
    Column("PRIO", 4, lambda task: str(task.priority), drop_rank=7, right=True),
    Column("AGE", 4, value_at=lambda task, now: format_short_age(now - task.sent_at), right=True),
    Column("ERROR", 13, value_at=_error_cell, grows=3, drop_rank=1),
)


# Sort orders

NEWEST_FIRST: Final = SortOrder(column="AGE", is_descending=False)
"""The order in which pages are read; any other order covers the loaded rows only."""

_NEVER: Final = timedelta(-1)

TASK_SORT_KEYS: Final[Mapping[str, Callable[[TaskSummary, datetime], Any]]] = {
    # Ids are UUIDv7, so their order is that of sending.
    "AGE": lambda task, _: -task.id.int,
    "TASK": lambda task, _: task.name,
    "QUEUE": lambda task, _: task.queue,
    "STATUS": lambda task, _: task.status,
    "ATT": lambda task, _: task.attempt_count,
    "HB": lambda task, now: silence(task, now) or _NEVER,
    "WAIT": lambda task, now: wait_time(task, now) or _NEVER,
    "PRIO": lambda task, _: task.priority,
    "ERROR": lambda task, _: task.error_code or "",
}
"""Missing values sort lowest."""


# Argument previews


class ArgumentPreviews:
    """Cache of the ARGS column: redacted and truncated, read once per task because arguments never change."""

    def __init__(self, settings: TuiConfig) -> None:
        self._settings = settings
        self._previews: dict[UUID, str] = {}

    @property
    def column(self) -> Column[TaskSummary]:
        return Column(ARGUMENTS_TITLE, 16, self._text, tone=Tone.DIM, grows=6, drop_rank=8)

    def _text(self, task: TaskSummary) -> str:
        return self._previews.get(task.id, "")

    def missing(self, rows: RowList[TaskSummary], *, pages: int = 1) -> list[UUID]:
        """Return the tasks without a preview on the screen and this many pages around it, if the column is visible."""
        near = rows.rows_around(pages) if ARGUMENTS_TITLE in rows.titles else ()
        return [task.id for task in near if task.id not in self._previews]

    def add(self, payloads: Mapping[UUID, PayloadPreview]) -> None:
        if len(self._previews) > MAX_PREVIEWS:
            self._previews.clear()
        self._previews |= {key: self._preview(payload) for key, payload in payloads.items()}

    def _preview(self, payload: PayloadPreview) -> str:
        document = _combined_arguments(payload)
        # Too long to be read for a preview: only the size is known.
        if document is None:
            return f"{payload.size / 1000:.0f} kB"
        return compact_json(document, self._settings)[:MAX_PREVIEW_CHARACTERS]


def _combined_arguments(payload: PayloadPreview) -> Any:
    return stored_json(lambda: payload.arguments)


# Export


async def export_tasks(source: DataSource, tasks: Sequence[TaskSummary], settings: TuiConfig) -> list[dict[str, Any]]:
    """Return the tasks as documents with redacted arguments; arguments too long for a preview are None."""
    payloads = await source.payload_previews([task.id for task in tasks])
    arguments = {key: redact(_combined_arguments(payload), settings) for key, payload in payloads.items()}
    return [
        {name: to_json(getattr(task, name)) for name in EXPORTED_FIELDS} | {"arguments": arguments.get(task.id)}
        for task in tasks
    ]


# Preview pane


def preview_lines(detail: TaskDetail, now: datetime, settings: TuiConfig) -> list[Content]:
    """Status, error, arguments and why it waits or what recovery does with it."""
    waits = f"waits: {detail.wait_reasons[0].text}" if detail.wait_reasons else ""
    texts = {_status_line(detail.task, now): "", _error_line(detail): "$text-error", waits: "$text-warning"}
    lines = [safe(text, style) for text, style in texts.items() if text]
    return [*lines, _arguments_line(detail, settings), *filter(None, [safe(_decision_line(detail), "$text-warning")])]


def _status_line(task: TaskRecord, now: datetime) -> str:
    worker = f" on {task.worker_hostname}, child {task.worker_pid}" if task.worker_hostname else ""
    sent = f"   sent {format_time(task.sent_at)}  wait {format_elapsed(wait_time(task, now))}"
    if task.status in LIVE_STATUSES:
        return f"{task.status}{worker}, silent {format_age(silence(task, now))}{sent}"
    if task.finished_at is None:
        return f"{task.status}{sent}"
    ran = f" after {format_elapsed(task.finished_at - task.started_at)}" if task.started_at else ""
    return f"{task.status} {format_age(now - task.finished_at)} ago{worker}{ran}{sent}"


def _error_line(detail: TaskDetail) -> str:
    task = detail.task
    if task.error_code is None:
        return ""
    last = next((attempt for attempt in detail.attempts if attempt.error_code == task.error_code), None)
    message = (last.error_message if last is not None else None) or task.failed_reason or ""
    return f"{task.error_code}: {sanitize(message, limit=400)}"


def _arguments_line(detail: TaskDetail, settings: TuiConfig) -> Content:
    task = detail.task
    until = f"   good until {format_time(task.good_until)}" if task.good_until else ""
    workflow = f"   workflow {short_id(task.workflow_id)}" if task.workflow_id else ""
    arguments = coloured_json(compact_json(stored_json(lambda: detail.arguments), settings))
    return Content.assemble("args ", arguments, safe(f"{until}{workflow}"))


def _decision_line(detail: TaskDetail) -> str:
    reasons = [reason for reason in detail.reasons() if reason.cause is WaitCause.RECOVERY]
    return reasons[0].text if reasons else ""
