"""Tasks on the terminal and as JSON."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import humanize

from horsies.model.ids import short_form
from horsies.model.text import safe
from horsies_ops.cli.output import print_facts, print_line, print_table, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies_ops.reads.tasks import TaskDetail, TaskPage, TaskSummary

LONGEST_VALUE = 400
"""How much of a value `task show` shows unless it is asked for all."""

_SUMMARY = (
    "id", "name", "queue", "status", "priority", "retry_count", "max_retries", "crash_count", "error_code", "sent_at",
    "enqueued_at", "claimed_at", "started_at", "finished_at", "good_until", "next_retry_at", "worker_id",
    "worker_hostname", "worker_pid", "workflow_id", "flags",
)  # fmt: skip
_DETAIL = (
    "args", "kwargs", "result", "failed_reason", "claim_token", "claim_expires_at", "recovery_hold_until",
    "overlap_possible", "no_restart", "idempotency_key", "retry_of",
)  # fmt: skip
_ATTEMPT = (
    "attempt", "claim_token", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message",
    "failed_reason", "worker_id", "worker_hostname", "worker_pid",
)  # fmt: skip


def page_document(page: TaskPage) -> dict[str, Any]:
    """What `task list --json` prints; `total` is not counted."""
    return {"tasks": [_summary(task) for task in page.tasks], "next": page.next, "total": None}


def detail_document(detail: TaskDetail) -> dict[str, Any]:
    """What `task show --json` prints."""
    task, beat = detail.task, detail.last_beat
    return {
        **_summary(task),
        **_picked(task, _DETAIL),
        "retry_policy": task.options.get("retry_policy"),
        "timeout_ms": task.options.get("timeout_ms"),
        "last_beat": {"role": beat.role, "at": beat.at, "age_s": beat.age} if beat else None,
        "verdict": None,
        "attempts": [_picked(attempt, _ATTEMPT) for attempt in detail.attempts],
        "events": [_picked(event, ("at", "kind", "evidence")) for event in detail.events],
    }


def print_page(page: TaskPage) -> None:
    """A table no wider than the terminal, as long as that has eighty columns."""
    # What the columns of known width leave is shared by name, queue and error.
    spare = max(36, shutil.get_terminal_size(fallback=(120, 24)).columns - 44)
    name, queue, error = spare * 4 // 9, spare * 2 // 9, spare * 3 // 9
    print_table(
        ("id", "status", "name", "queue", "age", "tries", "error"),
        [
            (
                short_form(task.id),
                task.status,
                safe(task.name, limit=name),
                safe(task.queue, limit=queue),
                safe(humanize.naturaldelta(task.age), limit=10),
                str(task.attempt_count),
                safe(task.error_code or "", limit=error),
            )
            for task in page.tasks
        ],
        right=("tries",),
    )


def print_detail(detail: TaskDetail, *, full: bool) -> None:
    """Everything that is known, a fact a line; what is not set is left out, what is long is cut unless `full`."""
    limit = None if full else LONGEST_VALUE
    document = detail_document(detail)
    attempts, events = document.pop("attempts"), document.pop("events")
    _print_part(document, limit)
    for attempt in attempts:
        print_line(f"\nattempt {attempt.pop('attempt')}")
        _print_part(attempt, limit, indent="  ")
    for event in events:
        print_line(f"\nevent {safe(event.pop('kind'), limit=limit)}")
        _print_part(event, limit, indent="  ")


def _print_part(part: Mapping[str, Any], limit: int | None, indent: str = "") -> None:
    given = {name: _shown(value) for name, value in part.items() if value is not None}
    print_facts({indent + name: safe(text, limit=limit) for name, text in given.items()})


def _summary(task: TaskSummary) -> dict[str, Any]:
    return {**_picked(task, _SUMMARY), "age_s": task.age}


def _picked(row: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _shown(value: object) -> str:
    plain = to_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
