"""What operators did, line by line."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, cast

from horsies_tui.format import clean, clock, fit, short_id

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow


FEW: Final = 2
"""So many tasks are named by their ids."""


def log_line(row: AuditRow) -> str:
    """`12:01:08 ana        retry           41 matched         changed 41 skipped 0  "smtp is back"`."""
    why = f'  "{clean(row.reason, limit=200)}"' if row.reason else ""
    done = "dry run" if row.dry_run else f"changed {row.affected:,} skipped {row.skipped:,}"
    return f"{clock(row.at)} {fit(row.actor, 10)} {fit(row.action, 15)} {fit(about(row), 18)} {done}{why}"


def whole(row: AuditRow) -> list[str]:
    """Everything that is on record about one action."""
    named, more = " ".join(map(str, row.task_ids[:FEW])), len(row.task_ids) - FEW
    return [
        f"{row.id}  {row.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z  {row.actor} on {row.host} by {row.via}  {did(row)}",
        f"matched {row.matched:,}  changed {row.affected:,}  skipped {row.skipped:,}",
        *([f"asked for {row.filter_json}"] if row.filter_json else []),
        *([f"tasks {named}{f' and {more:,} more' if more > 0 else ''}"] if named else []),
        f"why  {row.reason or '-'}",
    ]


def did(row: AuditRow) -> str:
    return f"{row.action} (dry run)" if row.dry_run else row.action


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
