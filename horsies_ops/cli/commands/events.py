"""`horsies events`: list and follow recorded events."""

from __future__ import annotations

import asyncio
import json as plain_json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Any

import typer

from horsies.model.task import short_form
from horsies.model.text import sanitize_text
from horsies_ops.cli.option_types import duration_option, flatten, list_option
from horsies_ops.cli.options import GlobalOptions, group, with_global_options
from horsies_ops.cli.output import json_line, print_line, to_json
from horsies_ops.ops import open_ops
from horsies_ops.reads.events import EventRow

app = group("events")

DEFAULT_SINCE: Any = "1h"  # a text, because typer parses defaults too and shows them in the help

MAX_EVIDENCE_LENGTH = 300


@app.command()
@with_global_options
def events(
    options: GlobalOptions,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new events until interrupted.")] = False,
    kind: Annotated[list[Any] | None, list_option("Only events of these kinds.")] = None,
    since: Annotated[timedelta, duration_option("Only events of the last 1h, 2d, ….")] = DEFAULT_SINCE,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show the last N events, newest last.")] = 1000,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show recorded events, and follow new ones."""
    format_event: Callable[[EventRow], str] = _json_line if json else _full_line if full else _line
    if follow:
        asyncio.run(_follow(options, since, flatten(kind), format_event))
        return
    found = asyncio.run(_read(options, since, flatten(kind), limit))
    for event in found:
        print_line(format_event(event))
    if not found and not json:
        options.print_message("no events")


async def _read(options: GlobalOptions, since: timedelta, kinds: Sequence[str], limit: int) -> Sequence[EventRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.events(since=since, kinds=kinds, limit=limit)


async def _follow(
    options: GlobalOptions, since: timedelta, kinds: Sequence[str], format_event: Callable[[EventRow], str]
) -> None:
    async with (
        open_ops(options.load_settings().app, read_only=True, via="cli") as ops,
        aclosing(ops.tail_events(since=since, kinds=kinds)) as events,
    ):
        async for event in events:
            print_line(format_event(event))
            sys.stdout.flush()  # a pipe is buffered, and a reader of --follow must not wait for more events


def _json_line(event: EventRow) -> str:
    row = {name: value for name, value in to_json(event).items() if name != "evidence_json"}
    return json_line({**row, "evidence": event.evidence})


def _line(event: EventRow, limit: int | None = MAX_EVIDENCE_LENGTH) -> str:
    subjects = {"task": event.task_id, "run": event.workflow_id, "worker": event.worker_id}
    ids = [f"{noun} {short_form(subject_id)}" for noun, subject_id in subjects.items() if subject_id]
    evidence = [
        f"{name}={value if isinstance(value, str) else plain_json.dumps(value, ensure_ascii=False)}"
        for name, value in event.evidence.items()
        if value is not None
    ]
    return "  ".join(
        [to_json(event.at), sanitize_text(event.kind), *ids, sanitize_text(" ".join(evidence), limit=limit)]
    ).rstrip()


def _full_line(event: EventRow) -> str:
    return _line(event, limit=None)
