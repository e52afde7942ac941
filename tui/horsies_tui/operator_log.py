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
    return f"{clock(row.at)} {fit(row.actor, 10)} {fit(row.action, 12)} {fit(about(row), 18)} {done}{why}"


def about(row: AuditRow) -> str:
    """What it was done to, as far as a few words say it."""
    asked = cast("dict[str, Any]", row.filter or {})
    if "queue" in asked:
        return f"queue {asked['queue']}"
    for kind in ("workflow", "worker"):
        if f"{kind}_id" in asked:
            return f"{kind} {short_id(str(asked[f'{kind}_id']))}"
    if terms := asked.get("filter"):
        return _parts(terms[0])
    return f"task {short_id(row.task_ids[0])}" if len(row.task_ids) == 1 else f"{row.matched:,} matched"


def _parts(term: dict[str, Any]) -> str:
    """The values of a filter, which say enough without their names."""
    return " ".join(_value(value) for name, value in term.items() if name != "is_wanted")


def _value(value: object) -> str:
    return ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
