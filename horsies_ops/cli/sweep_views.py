"""Shows a sweep report as text or JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import short_form
from horsies.model.text import sanitize_text
from horsies.recovery.report import SweepReport, SweepStatus, SweptTask
from horsies_ops.cli.output import (
    TableColumn,
    format_age,
    format_instant,
    print_line,
    print_rows,
    print_warning,
    row_document,
)

if TYPE_CHECKING:
    from horsies_ops.reads.stale import SilentTasks

_MAX_NAME_WIDTH = 40
_TASK_FIELDS = {
    "task_id": "id",
    "task_name": "name",
    "queue_name": "queue",
    "owner_id": "owner",
    "effective_threshold": "threshold",
}
"""Fields of a task in the JSON document, where they differ from those of the row."""
_PAST_TENSE = {
    DecisionKind.REQUEUE: "requeued",
    DecisionKind.RETRY: "retried",
    DecisionKind.FAIL: "failed",
    DecisionKind.EXPIRE: "expired",
}


def sweep_document(report: SweepReport, silent: SilentTasks | None = None) -> dict[str, Any]:
    """Return the document of `sweep --json`."""
    return {
        **row_document(report),
        "thresholds": row_document(report.thresholds),
        "tasks": [row_document(task, **_TASK_FIELDS) for task in report.tasks],
        "not_yet_stale": None if silent is None else row_document(silent),
    }


def print_sweep(report: SweepReport, silent: SilentTasks | None = None) -> None:
    """Print one line per task and workflow, then the totals, silent tasks and warnings."""
    if report.tasks:
        print_rows(report.tasks, _COLUMNS)
    for workflow in report.workflows:
        print_line(f"workflow {workflow.id}  heal  case {sanitize_text(workflow.case)}")
    print_line(_summary(report))
    if silent is not None:
        tasks = "1 task" if silent.count == 1 else f"{silent.count:,} tasks"
        when = f"stale from {format_instant(silent.stale_at)}; use --threshold to recover sooner"
        print_line(f"{tasks} silent for {format_age(silent.longest)}, {when}")
    for warning in report.warnings:
        print_warning(warning)


def _owner(task: SweptTask) -> str:
    owner = "-" if task.owner_id is None else short_form(task.owner_id)
    return owner if task.owner_state in {None, "running"} else f"{owner} {task.owner_state}"


def _note(task: SweptTask) -> str:
    notes = (
        task.code,
        "resilient" if task.resilient else None,
        f"at {format_instant(task.run_at)}" if task.run_at else None,
        f"until {format_instant(task.held_until)}" if task.held_until else None,
        f"by {task.hook}" if task.hook else None,
        f"refused: {task.refusal}" if task.refusal else None,
    )
    return "  ".join(note for note in notes if note)


_COLUMNS: tuple[TableColumn[SweptTask], ...] = (
    TableColumn("id", lambda task: str(task.task_id)),
    TableColumn("name", lambda task: sanitize_text(task.task_name, limit=_MAX_NAME_WIDTH)),
    TableColumn("state", lambda task: task.state),
    TableColumn("owner", _owner),
    TableColumn("silent", lambda task: format_age(task.heartbeat_age), right=True),
    TableColumn("limit", lambda task: format_age(task.effective_threshold), right=True),
    TableColumn("decision", lambda task: task.decision),
    TableColumn("reason", lambda task: task.reason),
    TableColumn("note", _note),
)


def _summary(report: SweepReport) -> str:
    match report.status:
        case SweepStatus.BUSY:
            return "busy: another sweep is running"
        case SweepStatus.OUTAGE_GRACE:
            until = max((task.held_until for task in report.tasks if task.held_until), default=None)
            when = "" if until is None else f" until {format_instant(until)}"
            held_back = f"all stale tasks ({len(report.tasks)}) held back{when}"
            return f"outage grace: no worker connected for a full threshold; {held_back}"
        case SweepStatus.NOTHING if not report.refused and not report.locked_runs:
            return "nothing to do"
        case SweepStatus.NOTHING | SweepStatus.DONE | SweepStatus.WOULD_ACT:
            return _counts(report)


def _counts(report: SweepReport) -> str:
    counts = Counter(task.decision for task in report.tasks if task.changes_state and (report.dry_run or task.applied))
    parts = [f"{counts[decision]} {word}" for decision, word in _PAST_TENSE.items() if counts[decision]]
    parts += [f"{len(report.workflows)} workflows healed"] if report.workflows else []
    changed = sum(task.changes_state and not task.applied and not task.refusal for task in report.tasks)
    parts += [f"{changed} changed meanwhile"] if changed and not report.dry_run else []
    parts += [f"{len(report.refused)} refused by the database"] if report.refused else []
    parts += [f"{len(report.locked_runs)} workflows locked by another transaction"] if report.locked_runs else []
    # A sweep that recovered no task but was not idle has only marked workers lost.
    return ("would be: " if report.dry_run else "") + (", ".join(parts) or f"{len(report.worker_ids)} workers lost")
