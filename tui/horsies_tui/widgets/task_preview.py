"""The few lines below the list that say more about the task under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from horsies.model.task import TaskStatus
from horsies_tui.format import age, clean, clock, safe, short_id, took
from horsies_tui.task_columns import LIVE, silence, waited
from horsies_tui.widgets.payload import given, one_line

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.settings import TuiConfig
    from horsies_ops.reads.tasks import TaskDetail, TaskFacts


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
