"""What the page of a task says, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import humanize
from textual.content import Content

from horsies.model.task import TaskStatus
from horsies_tui.format import age, clean, clock, cut, safe, short_id
from horsies_tui.task_columns import LIVE, silence
from horsies_tui.timeline import flowed, moments
from horsies_tui.widgets.payload import one_line

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from horsies.model.settings import TuiConfig
    from horsies_ops.reads.tasks import TaskDetail, TaskFacts
    from horsies_tui.glyphs import Glyphs


def head(task_id: UUID, detail: TaskDetail | None, *, back: str, width: int, signs: Glyphs) -> Content:
    """The way back, the whole id, the name, and on the right how it stands."""
    name = "" if detail is None else detail.task.name
    standing = _standing(detail, signs)
    left = cut(clean(f" {signs.back} {back}   {task_id}   {name}"), max(width - standing.cell_length - 2, 0))
    return safe(left, "bold").pad_right(max(width - len(left) - standing.cell_length - 1, 1)) + standing


def _standing(detail: TaskDetail | None, signs: Glyphs) -> Content:
    if detail is None:
        return Content("")
    if is_stale(detail):
        return safe(f"{signs.bad} STALE", "bold $text-error")
    return safe(detail.task.status, "bold")


def is_stale(detail: TaskDetail) -> bool:
    """Whether a sweep would do something about it."""
    return detail.verdict is not None and detail.verdict.is_to_act


def state(detail: TaskDetail, now: datetime, width: int) -> list[str]:
    """How it stands, who has it, and what a sweep would make of it."""
    task = detail.task
    attempt = task.attempt_count + (task.status == TaskStatus.RUNNING)
    parts = [
        f"status {task.status}",
        _silent(detail, now),
        f"queue {task.queue}",
        f"prio {task.priority}",
        f"att {attempt} of {task.max_retries + 1}",
        f"crashes {task.crash_count}" if task.crash_count else "",
    ]
    return [*flowed([part for part in parts if part], width), *_owner(detail, width), *_verdict(detail)]


def _silent(detail: TaskDetail, now: datetime) -> str:
    task, verdict = detail.task, detail.verdict
    if task.status in LIVE:
        limit = f" (limit {age(verdict.threshold)})" if verdict is not None and verdict.threshold else ""
        return f"silent {age(silence(task, now))}{limit}"
    if task.finished_at is not None:
        return f"ended {age(now - task.finished_at)} ago"
    if task.enqueued_at > now:
        return f"due in {age(task.enqueued_at - now)}"
    return f"waiting {age(now - task.enqueued_at)}"


def _owner(detail: TaskDetail, width: int) -> list[str]:
    task, verdict = detail.task, detail.verdict
    where = f" {task.worker_hostname}:{task.worker_pid}" if task.worker_hostname else ""
    is_odd = verdict is not None and verdict.owner_state not in (None, "running")
    gone = f", {(verdict.owner_state or '').upper()}" if verdict is not None and is_odd else ""
    parts = [
        f"worker {short_id(task.worker_id)}{where}{gone}" if task.worker_id else "",
        f"claim token {task.claim_token}" if task.claim_token else "",
        f"workflow {short_id(task.workflow_id)}" if task.workflow_id else "",
        f"retry of {short_id(task.retry_of)}" if task.retry_of else "",
        f"flags {' '.join(_flags(task))}" if _flags(task) else "",
        "may have overlapped with a later attempt" if task.overlap_possible else "",
        f"does not start again: {task.no_restart}" if task.no_restart else "",
    ]
    return flowed([clean(part) for part in parts if part], width)


def _flags(task: TaskFacts) -> list[str]:
    return [name for name, is_set in task.flags.items() if is_set]


def _verdict(detail: TaskDetail) -> list[str]:
    if detail.verdict is None or TaskStatus(detail.task.status) not in LIVE:
        return []
    return [detail.verdict.in_words]


def timeline(detail: TaskDetail, width: int) -> list[str]:
    return flowed([moment.text for moment in moments(detail)], width)


def events(detail: TaskDetail, settings: TuiConfig) -> list[str]:
    """The oldest first, each with its evidence."""
    found = [f"{clock(each.at)} {each.kind} {one_line(each.evidence, settings)}" for each in reversed(detail.events)]
    return found or ["no events of this task are kept"]


def result(detail: TaskDetail, text: str) -> list[str]:
    """What came of it; else what went wrong last."""
    if text:
        return text.split("\n")
    task = detail.task
    none = "no result" if TaskStatus(task.status).is_terminal else "no result yet"
    last = next((attempt for attempt in detail.attempts if attempt.error_code), None)
    if last is None:
        return [task.failed_reason or none]
    return [none, f"#{last.attempt} {last.error_code}: {last.error_message or last.failed_reason or ''}"]


def size(number: int) -> str:
    return humanize.naturalsize(number, binary=True, format="%.0f")
