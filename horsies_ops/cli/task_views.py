"""Shows tasks as text or JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import humanize

from horsies.model.task import short_form
from horsies.model.text import sanitize_text
from horsies_ops.cli.output import TableColumn, format_value, print_facts, print_line, print_rows, row_document

if TYPE_CHECKING:
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.tasks import TaskDetail, TaskPage, TaskSummary

FULL_ID_COLUMNS = 120
"""Terminal width from which lists show full ids."""

MAX_VALUE_LENGTH = 400
"""Longest value that `task show` prints without --full."""


def page_document(page: TaskPage, total: Count | None = None) -> dict[str, Any]:
    """Return the document of `task list --json`."""
    document = {
        "tasks": [row_document(task) for task in page.tasks],
        "next": page.next,
        "searched_to": page.searched_to,
        "total": None,
    }
    if total is None:
        return document
    return document | {"total": total.number, "total_is_exact": not (total.is_capped or total.is_estimate)}


def detail_document(detail: TaskDetail) -> dict[str, Any]:
    """Return the document of `task show --json`."""
    task, heartbeat, decision = detail.task, detail.last_heartbeat, detail.recovery_decision
    return {
        **row_document(task, options_json=None),
        "retry_policy": task.options.get("retry_policy"),
        "timeout_ms": task.options.get("timeout_ms"),
        "last_beat": {"role": heartbeat.role, "at": heartbeat.at, "age_s": heartbeat.age} if heartbeat else None,
        "verdict": {"decision": decision.decision, "reason": decision.reason} if decision else None,
        "attempts": [row_document(attempt, task_id=None, worker_process_name=None) for attempt in detail.attempts],
        "events": [{"at": event.at, "kind": event.kind, "evidence": event.evidence} for event in detail.events],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Column widths of a task list; None means unlimited."""

    has_full_ids: bool
    name: int | None = None
    queue: int | None = None
    note: int | None = None

    @classmethod
    def for_terminal(cls, columns: int, *, longest_note: int) -> Widths:
        """Divide the width of a terminal of at least 80 columns."""
        has_full_ids = columns >= FULL_ID_COLUMNS
        # Name, queue and note share what the fixed-width columns leave.
        spare = max(36, columns - (72 if has_full_ids else 44))
        # At least 16, so that "due in 5 minutes" is never cut.
        note = min(max(longest_note, len("note")), max(16, spare // 3))
        name = (spare - note) * 2 // 3
        return cls(has_full_ids=has_full_ids, name=name, queue=spare - note - name, note=note)


def print_page(page: TaskPage, *, full: bool) -> None:
    """Print tasks as a table that fits the terminal, or uncut if `full`."""
    width = shutil.get_terminal_size(fallback=(FULL_ID_COLUMNS, 24)).columns
    longest_note = max((len(_note(task)) for task in page.tasks), default=0)
    widths = Widths(has_full_ids=True) if full else Widths.for_terminal(width, longest_note=longest_note)
    columns: tuple[TableColumn[TaskSummary], ...] = (
        TableColumn("id", lambda task: str(task.id) if widths.has_full_ids else short_form(task.id)),
        TableColumn("status", lambda task: task.status),
        TableColumn("name", lambda task: sanitize_text(task.name, limit=widths.name)),
        TableColumn("queue", lambda task: sanitize_text(task.queue, limit=widths.queue)),
        TableColumn("age", lambda task: sanitize_text(humanize.naturaldelta(task.age), limit=10)),
        TableColumn("tries", lambda task: str(task.attempt_count), right=True),
        TableColumn("note", lambda task: sanitize_text(_note(task), limit=widths.note)),
    )
    print_rows(page.tasks, columns)


def print_detail(detail: TaskDetail, *, full: bool) -> None:
    """Print one line per value that is set; long values are cut unless `full`."""
    limit = None if full else MAX_VALUE_LENGTH
    document = detail_document(detail)
    attempts, events = document.pop("attempts"), document.pop("events")
    if detail.recovery_decision is not None:
        document["verdict"] = detail.recovery_decision.description
    if due := _due_text(detail.task):
        document["status"] += f", {due}"
    _print_values(document, limit)
    for attempt in attempts:
        print_line(f"\nattempt {attempt.pop('attempt')}")
        _print_values(attempt, limit, indent="  ")
    for event in events:
        print_line(f"\nevent {sanitize_text(event.pop('kind'), limit=limit)}")
        _print_values(event, limit, indent="  ")


def _print_values(values: Mapping[str, Any], limit: int | None, indent: str = "") -> None:
    print_facts(
        {
            indent + name: sanitize_text(format_value(value), limit=limit)
            for name, value in values.items()
            if value is not None
        }
    )


def _note(task: TaskSummary) -> str:
    return task.error_code or _due_text(task) or ""


def _due_text(task: TaskSummary) -> str | None:
    if task.due_in is None:
        return None
    # Round up: a task just sent with a delay of five minutes is due in five minutes, not in four.
    unit = timedelta(minutes=1) if task.due_in > timedelta(minutes=1) else timedelta(seconds=1)
    return f"due in {humanize.naturaldelta(-(-task.due_in // unit) * unit)}"
