"""`horsies audit`: list operator actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from horsies_ops.actions.report import AUDITED_ACTIONS
from horsies_ops.cli.option_types import flatten, list_option, split_values
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import TableColumn, format_value, show_rows

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow

app = group("audit")

MAX_IDS_SHOWN = 3
"""How many ids the text output lists; --json lists more."""


def parse_actions(text: str) -> list[str]:
    """Parse a comma-separated list of actions; unknown names are an error."""
    actions = split_values(text)
    if unknown := [action for action in actions if action not in AUDITED_ACTIONS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not among {', '.join(AUDITED_ACTIONS)}")
    return actions


@app.command()
@with_global_options
def audit(
    options: GlobalOptions,
    *,
    action: Annotated[
        list[Any] | None, list_option("Only these actions, such as retry or sweep.", parser=parse_actions)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show the last N entries, newest last.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show operator actions: who, why, which tasks, how many changed."""
    rows = options.read(lambda ops: ops.audit(actions=flatten(action), limit=limit))
    show_rows(options, "actions", rows, COLUMNS, json=json)


def _selection(row: AuditRow) -> str:
    """Return the first selected ids, or the stored filter."""
    from horsies.codec.canonical_json import canonical_json

    stored = cast("dict[str, Any]", row.filter or {})
    if ids := cast("list[str]", stored.get("ids", [])):
        more = len(ids) - MAX_IDS_SHOWN
        return " ".join(ids[:MAX_IDS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    return canonical_json(stored) if stored else "-"


COLUMNS: tuple[TableColumn[AuditRow], ...] = (
    TableColumn("id", lambda row: str(row.id), right=True),
    TableColumn("at", lambda row: format_value(row.at)),
    TableColumn("actor", lambda row: row.actor),
    TableColumn("via", lambda row: row.via),
    TableColumn("action", lambda row: f"{row.action}, dry run" if row.dry_run else row.action),
    TableColumn("matched", lambda row: f"{row.matched:,}", right=True),
    TableColumn("changed", lambda row: f"{row.affected:,}", right=True),
    TableColumn("skipped", lambda row: f"{row.skipped:,}", right=True),
    TableColumn("reason", lambda row: row.reason or "-"),
    TableColumn("selection", _selection),
)
