"""What operators did, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from horsies_tui.format import clean, clock, fit, short_id

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow


def log_line(row: AuditRow) -> str:
    """`12:01:08 ana       retry         41 tasks    changed 41 skipped 0  "smtp is back"`."""
    why = f'  "{clean(row.reason, limit=200)}"' if row.reason else ""
    done = "dry run" if row.dry_run else f"changed {row.affected:,} skipped {row.skipped:,}"
    return f"{clock(row.at)} {fit(row.actor, 12)} {fit(row.action, 12)} {fit(_about(row), 22)} {done}{why}"


def _about(row: AuditRow) -> str:
    """What it was done to, as far as a few words say it."""
    match row.filter:
        case {"queue": str() as queue}:
            return f"queue {queue}"
        case {"workflow_id": str() as run}:
            return f"workflow {short_id(run)}"
        case {"worker_id": str() as worker}:
            return f"worker {short_id(worker)}"
        case {"filter": [dict() as term, *_]}:
            return _parts(cast("dict[str, Any]", term))
        case _ if len(row.task_ids) == 1:
            return f"task {short_id(row.task_ids[0])}"
        case _:
            return f"{row.matched:,} matched"


def _parts(term: dict[str, Any]) -> str:
    """The values of a filter, which say enough without their names."""
    return " ".join(_value(value) for name, value in term.items() if name != "is_wanted")


def _value(value: object) -> str:
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
