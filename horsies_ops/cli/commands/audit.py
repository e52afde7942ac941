"""`horsies audit`: list operator actions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from horsies.codec.canonical_json import canonical_json
from horsies.model.operator_actions import Action
from horsies_ops.actions.queues import PAUSE_QUEUE, RESUME_QUEUE
from horsies_ops.actions.send import SEND
from horsies_ops.actions.workflows import WORKFLOW_ACTIONS
from horsies_ops.cleanup import CLEANUP
from horsies_ops.cli.option_types import flatten, list_option, split_values
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import print_json, print_table, to_json
from horsies_ops.ops import open_ops
from horsies_ops.reads.events import AuditRow
from horsies_ops.sweep import RELEASE, SWEEP

app = group("audit")

_COUNTS = ("matched", "changed", "skipped")
_COLUMNS = ("id", "at", "actor", "via", "action", *_COUNTS, "reason", "selection")
MAX_IDS_SHOWN = 3
"""How many ids the text output lists; --json lists more."""
AUDITED_ACTIONS = (*Action, SWEEP, RELEASE, CLEANUP, SEND, PAUSE_QUEUE, RESUME_QUEUE, *WORKFLOW_ACTIONS)


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
    rows = asyncio.run(_read(options, flatten(action), limit))
    if json:
        print_json({"actions": [_document(row) for row in rows]})
    elif rows:
        print_table(_COLUMNS, [_cells(row) for row in rows], right=("id", *_COUNTS))
    else:
        options.print_message("no actions")


async def _read(options: GlobalOptions, actions: Sequence[str], limit: int) -> Sequence[AuditRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.audit(actions=actions, limit=limit)


def _document(row: AuditRow) -> dict[str, Any]:
    # `filter_json` is the same value as text.
    plain = {name: value for name, value in to_json(row).items() if name != "filter_json"}
    return {**plain, "filter": row.filter}


def _cells(row: AuditRow) -> tuple[str, ...]:
    return (
        str(row.id),
        to_json(row.at),
        row.actor,
        row.via,
        f"{row.action}, dry run" if row.dry_run else row.action,
        *(f"{count:,}" for count in (row.matched, row.affected, row.skipped)),
        row.reason or "-",
        _selection(row),
    )


def _selection(row: AuditRow) -> str:
    """Return the first selected ids, or the stored filter."""
    stored = cast("dict[str, Any]", row.filter or {})
    if ids := cast("list[str]", stored.get("ids", [])):
        more = len(ids) - MAX_IDS_SHOWN
        return " ".join(ids[:MAX_IDS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    return canonical_json(stored) if stored else "-"
