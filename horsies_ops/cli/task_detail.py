"""One task and its result: as JSON, and as text in the sections of the detail screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from horsies.model.task import TaskAttemptInfo, short_form
from horsies.model.text import first_line, format_age, format_elapsed, mask_values, sanitize_text
from horsies_ops.cli.output import (
    format_instant,
    format_value,
    print_line,
    row_document,
    to_json,
)

if TYPE_CHECKING:
    from horsies_ops.reads.tasks import TaskDetail, TaskSummary

MAX_VALUE_LENGTH = 400
"""Longest value that `task show` prints without --full."""

MAX_LINE_LENGTH = 100
"""A longer JSON value has one line for each of its parts."""

MAX_VALUE_LINES = 40
"""Most lines of arguments, or of a result, without --full."""

_OTHER_FACTS = ("idempotency_key", "claim_expires_at", "next_retry_at", "good_until", "no_restart", "failed_reason")
"""Columns of a task that `task show` prints under their names, if they have a value."""


def detail_document(detail: TaskDetail) -> dict[str, Any]:
    """Return the document of `task show --json`."""
    task, heartbeat, decision = detail.task, detail.last_heartbeat, detail.recovery_decision
    return {
        **row_document(task, options_json=None),
        "retry_policy": task.options.get("retry_policy"),
        "timeout_ms": task.options.get("timeout_ms"),
        "last_beat": {"role": heartbeat.role, "at": heartbeat.at, "age_s": heartbeat.age} if heartbeat else None,
        "verdict": {"decision": decision.decision, "reason": decision.reason} if decision else None,
        "wait_reasons": [reason._asdict() for reason in detail.reasons()],
        "attempts": [row_document(attempt, task_id=None, worker_process_name=None) for attempt in detail.attempts],
        "events": [{"at": event.at, "kind": event.kind, "evidence": event.evidence} for event in detail.events],
    }


def print_detail(detail: TaskDetail, mask_keys: Sequence[str], *, full: bool) -> None:
    """Print a task in the sections of the detail screen; long values are cut unless `full`, secrets are masked."""
    # Imported here: it loads the reads, which --help does not need.
    from horsies_ops.reads.timeline import timeline_entries

    task, limit = detail.task, None if full else MAX_VALUE_LENGTH
    arguments = mask_values(detail.arguments, mask_keys)
    print_line(f"{task.id}  {sanitize_text(task.name, limit=limit)}  {task.status}")
    _print_section("State", _state_lines(detail), limit)
    if reasons := detail.reasons():
        _print_section(detail.reasons_title, (reason.text for reason in reasons), limit)
    if detail.attempts:
        _print_section("Attempts", map(_attempt_line, reversed(detail.attempts)), limit)
    entries = timeline_entries(detail)
    _print_section("Timeline", (f"{format_instant(entry.at)}  {entry.description}" for entry in entries), limit)
    if detail.events:
        events = reversed(detail.events)
        shown = (f"{format_instant(event.at)}  {event.kind}  {format_value(event.evidence)}" for event in events)
        _print_section("Events", shown, limit)
    _print_section("Arguments", _cut(_json_lines(arguments), full=full) if arguments else ["none"], limit)
    print_result_section("Result", task.result, mask_keys, full=full)


def print_result_section(
    title: str, document: Mapping[str, Any] | None, mask_keys: Sequence[str], *, full: bool
) -> None:
    """Print a result below a title; long values are cut unless `full`, secrets are masked."""
    lines = _cut(result_lines(mask_values(document, mask_keys)), full=full) if document else ["none"]
    _print_section(title, lines, None if full else MAX_VALUE_LENGTH)


def _state_lines(detail: TaskDetail) -> Iterator[str]:
    task = detail.task
    attempt = task.attempt_count + (task.status == "RUNNING")
    flags = [name for name, is_set in task.flags.items() if is_set]
    yield _joined(
        f"status {task.status}",
        task.error_code,
        age_text(detail),
        f"queue {task.queue}",
        f"priority {task.priority}",
        f"attempt {attempt} of {task.max_retries + 1}",
        f"crashes {task.crash_count}" if task.crash_count else None,
    )
    yield _joined(
        None if detail.owner else _owner_text(task),
        f"claim token {task.claim_token}" if task.claim_token else None,
        f"workflow {task.workflow_id}" if task.workflow_id else None,
        f"retry of {task.retry_of}" if task.retry_of else None,
        f"flags {' '.join(flags)}" if flags else None,
        "a lost attempt may have kept running" if task.overlap_possible else None,
    )
    facts = {name: getattr(task, name) for name in _OTHER_FACTS} | dict(task.options)
    yield from (f"{name} {format_value(value)}" for name, value in facts.items() if value is not None)


def _owner_text(of: TaskSummary | TaskAttemptInfo) -> str | None:
    """Return the worker, and the child process that runs or ran the task."""
    if of.worker_id is None:
        return None
    child = f", child process {of.worker_pid} on {of.worker_hostname}" if of.worker_hostname else ""
    return f"worker {short_form(of.worker_id)}{child}"


def _joined(*parts: str | None) -> str:
    return "  ".join(part for part in parts if part)


def age_text(detail: TaskDetail) -> str:
    """Return the age that matters in the status of the task."""
    task = detail.task
    now = task.read_at
    if task.silence is not None:
        limit = detail.recovery_decision.effective_threshold if detail.recovery_decision else None
        return f"silent {format_age(task.silence)}" + (f" (limit {format_age(limit)})" if limit else "")
    if task.finished_at is not None:
        return f"finished {format_age(now - task.finished_at)} ago"
    return due_text(task) or f"waiting {format_age(now - task.enqueued_at)}"


def due_text(task: TaskSummary) -> str | None:
    """Return when a delayed task may start; None for any other."""
    if task.due_in is None:
        return None
    # Rounded up to seconds: a task just sent with a delay of five minutes is due in 5m00s.
    return f"due in {format_age(-(-task.due_in // timedelta(seconds=1)) * timedelta(seconds=1))}"


def _attempt_line(attempt: TaskAttemptInfo) -> str:
    message = first_line(attempt.error_message or attempt.failed_reason or "", limit=MAX_VALUE_LENGTH)
    return _joined(
        f"#{attempt.attempt} {format_instant(attempt.started_at)}",
        f"{attempt.outcome} after {format_elapsed(attempt.finished_at - attempt.started_at)}",
        _owner_text(attempt),
        ": ".join(filter(None, (attempt.error_code, message))),
        "will retry" if attempt.will_retry else None,
    )


def _json_lines(value: object) -> list[str]:
    return json.dumps(to_json(value), ensure_ascii=False, indent=2).split("\n")


def _cut(lines: Iterable[str], *, full: bool) -> list[str]:
    every = list(lines)
    if full or len(every) <= MAX_VALUE_LINES:
        return every
    return [*every[:MAX_VALUE_LINES], f"… {len(every) - MAX_VALUE_LINES} more lines with --full"]


def _print_section(title: str, lines: Iterable[str], limit: int | None) -> None:
    print_line(f"\n{title}")
    for line in filter(None, lines):
        shown = sanitize_text(line, limit=limit)
        is_cut = limit is not None and shown.endswith("…") and not line.endswith("…")
        print_line(f"  {shown} (all with --full)" if is_cut else f"  {shown}")


# Results


def print_result(document: dict[str, Any]) -> None:
    """Print a result: on a terminal the value or the error for people, elsewhere as JSON."""
    # Imported here: it loads the codec, which --help does not need.
    from horsies.codec.canonical_json import canonical_json

    for line in result_lines(document) if sys.stdout.isatty() else [canonical_json(document)]:
        print_line(sanitize_text(line))


def result_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the value of a result, or its error with data and traceback."""
    error: dict[str, Any] | None = document.get("err")
    if error is None:
        value = document.get("ok")
        line = format_value(value)
        yield from [line] if isinstance(value, str) or len(line) <= MAX_LINE_LENGTH else _json_lines(value)
        return
    yield ": ".join(["failed", *(str(error[part]) for part in ("error_code", "message") if error.get(part))])
    if error.get("data") is not None:
        yield f"data: {format_value(error['data'])}"
    match error.get("exception"):
        case {"traceback": str(traceback)}:
            yield from traceback.splitlines()
        case str(exception):
            yield exception
        case _:
            pass
