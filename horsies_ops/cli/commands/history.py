"""`horsies events` and `horsies audit`: what happened, and what operators did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from horsies.errors import ErrorCode, UsageError
from horsies.model.task import short_form
from horsies.model.text import sanitize_text
from horsies_ops.actions.report import AUDITED_ACTIONS
from horsies_ops.cli.option_types import FullOption, duration_option, flatten, list_option
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import TableColumn, format_value, json_line, print_line, row_document, show_rows

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from horsies_ops.reads.events import AuditRow, EventRow

events_app, audit_app = group("events"), group("audit")

DEFAULT_SINCE: Any = "1h"  # a text, because typer parses defaults too and shows them in the help

MAX_EVIDENCE_LENGTH = 300


@events_app.command()
@with_global_options
def events(
    options: GlobalOptions,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events.")] = False,
    kind: Annotated[list[Any] | None, list_option("Only events of this kind.")] = None,
    since: Annotated[timedelta, duration_option("Only events newer than this.")] = DEFAULT_SINCE,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, metavar="N", help="Show the last N events, newest last.")
    ] = 1000,
    full: FullOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show recorded events.

    Example: horsies events --follow --kind worker_lost,task_recovered
    """
    kinds = _known_kinds(flatten(kind))
    print_event = _print_json_line if json else partial(_print_line, limit=None if full else MAX_EVIDENCE_LENGTH)
    if follow:
        options.read(lambda ops: _follow(ops, since, kinds, print_event))
        return
    found = options.read(lambda ops: ops.events(since=since, kinds=kinds, limit=limit))
    for event in found:
        print_event(event)
    if not found and not json:
        options.print_message("no events")


def _known_kinds(kinds: Sequence[str]) -> Sequence[str]:
    # Imported here: it loads pydantic, which --help does not need.
    from horsies.model.events import EventKind

    known = sorted(EventKind)
    if unknown := [kind for kind in kinds if kind not in known]:
        message = f"--kind: {unknown[0]!r} is not among {', '.join(known)}"
        raise UsageError(message, code=ErrorCode.CLI_INVALID_ARGS)
    return kinds


async def _follow(ops: Ops, since: timedelta, kinds: Sequence[str], print_event: Callable[[EventRow], None]) -> None:
    async with aclosing(ops.tail_events(since=since, kinds=kinds)) as events:
        async for event in events:
            print_event(event)
            sys.stdout.flush()  # a pipe is buffered, and a reader of --follow must not wait for more events


def _print_json_line(event: EventRow) -> None:
    print_line(json_line(row_document(event)))


def _print_line(event: EventRow, *, limit: int | None) -> None:
    subjects = {"task": event.task_id, "run": event.workflow_id, "worker": event.worker_id}
    ids = [f"{noun} {short_form(subject_id)}" for noun, subject_id in subjects.items() if subject_id]
    evidence = " ".join(f"{name}={format_value(value)}" for name, value in event.evidence.items() if value is not None)
    parts = [format_value(event.at), sanitize_text(event.kind), *ids, sanitize_text(evidence, limit=limit)]
    print_line("  ".join(parts).rstrip())


# The audit log

MAX_IDS_SHOWN = 3
"""How many ids the text output lists; --json lists more."""


@audit_app.command()
@with_global_options
def audit(
    options: GlobalOptions,
    *,
    action: Annotated[
        list[Any] | None, list_option("Only these actions, such as retry or sweep.", choices=AUDITED_ACTIONS)
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, metavar="N", help="Show the last N entries, newest last.")
    ] = 50,
    json: JsonOption = False,
) -> None:
    """Show operator actions: who, why, which tasks, how many changed.

    Example: horsies audit --action retry,sweep
    """
    rows = options.read(lambda ops: ops.audit(actions=flatten(action), limit=limit))
    show_rows(options, "actions", rows, AUDIT_COLUMNS, json=json)


def _selection(row: AuditRow) -> str:
    """Return the first selected ids, or the stored filter."""
    from horsies.codec.canonical_json import canonical_json

    stored = cast("dict[str, Any]", row.filter or {})
    if ids := cast("list[str]", stored.get("ids", [])):
        more = len(ids) - MAX_IDS_SHOWN
        return " ".join(ids[:MAX_IDS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    return canonical_json(stored) if stored else "-"


AUDIT_COLUMNS: tuple[TableColumn[AuditRow], ...] = (
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
