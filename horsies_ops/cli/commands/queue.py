"""`horsies queue`: list, pause and resume queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.text import sanitize_text
from horsies_ops.actions.queues import validate_queue_name
from horsies_ops.actions.report import ActionReport
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import format_age, print_json, print_line, print_table, print_warning
from horsies_ops.ops import open_ops
from horsies_ops.reads.queues import QueueRow

app = group("queue")

_NUMBERS = ("priority", "pending", "delayed", "claimed", "running", "oldest", "done/min", "failed/min", "workers")


@app.command("list")
@with_global_options
def list_(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """List queues with waiting and running tasks, throughput and workers."""
    queues = asyncio.run(_read_queues(options))
    if json:
        print_json({"queues": [_document(queue) for queue in queues]})
    elif queues:
        print_table(("queue", *_NUMBERS, "state"), [_cells(queue) for queue in queues], right=_NUMBERS)
    else:
        options.print_message("no queues")


def _parse_queue_name(text: str) -> str:
    try:
        validate_queue_name(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None
    return text


QueueArgument = Annotated[str, typer.Argument(parser=_parse_queue_name, metavar="QUEUE", help="Name of the queue.")]
ReasonOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Reason for the audit log, shown with the paused queue.")
]
ActorOption = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Actor for the audit log [default: your login].")
]


@app.command()
@with_global_options
def pause(
    options: GlobalOptions,
    queue: QueueArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Stop claiming tasks from a queue; running tasks continue."""
    report = asyncio.run(_change(options, "pause", queue, reason, actor))
    _print_report(options, report, "paused" if report.affected else "was paused already", queue, json=json)


@app.command()
@with_global_options
def resume(
    options: GlobalOptions,
    queue: QueueArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Resume a paused queue."""
    report = asyncio.run(_change(options, "resume", queue, reason, actor))
    _print_report(options, report, "resumed" if report.affected else "was not paused", queue, json=json)


async def _change(options: GlobalOptions, verb: str, queue: str, reason: str | None, actor: str | None) -> ActionReport:
    async with open_ops(options.load_settings().app, actor=actor, via="cli") as ops:
        change = ops.pause_queue if verb == "pause" else ops.resume_queue
        return await change(queue, reason=reason)


def _print_report(options: GlobalOptions, report: ActionReport, result: str, queue: str, *, json: bool) -> None:
    if json:
        print_json(
            {
                "action": report.action,
                "queue": queue,
                "changed": report.affected > 0,
                "audit_id": report.audit_id,
                "warnings": report.warnings,
            }
        )
        return
    print_line(f"{sanitize_text(queue)} {result}")
    if not options.quiet:
        for warning in report.warnings:
            print_warning(warning)


async def _read_queues(options: GlobalOptions) -> Sequence[QueueRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        try:
            return await ops.list_queues()
        except ConfigurationError as error:
            # A database without our tables has no queues, so the list is empty.
            if error.code is not ErrorCode.SCHEMA_NOT_MIGRATED:
                raise
            options.print_message(
                options.add_connection_options("the database has no horsies tables; run: horsies db migrate")
            )
            return ()


def _document(queue: QueueRow) -> dict[str, Any]:
    return {
        "name": queue.name,
        "priority": queue.priority,
        "max_concurrency": queue.max_concurrency,
        "paused": queue.is_paused,
        "paused_at": queue.paused_at,
        "paused_by": queue.paused_by,
        "pause_reason": queue.pause_reason,
        "pending": queue.pending,
        "delayed": queue.delayed,
        "claimed": queue.claimed,
        "running": queue.running,
        "oldest_due_age_s": queue.oldest_due_age,
        "next_due_in_s": queue.next_due_in,
        "finished_last_minute": queue.finished_last_minute,
        "failed_last_minute": queue.failed_last_minute,
        "served_by": queue.served_by,
    }


def _cells(queue: QueueRow) -> tuple[str, ...]:
    cap = "" if queue.max_concurrency is None else f"/{queue.max_concurrency}"
    return (
        queue.name,
        "-" if queue.priority is None else str(queue.priority),
        f"{queue.pending:,}",
        f"{queue.delayed:,}",
        f"{queue.claimed:,}",
        f"{queue.running:,}{cap}",
        format_age(queue.oldest_due_age),
        f"{queue.finished_last_minute - queue.failed_last_minute:,}",
        f"{queue.failed_last_minute:,}",
        str(queue.served_by),
        _state(queue),
    )


def _state(queue: QueueRow) -> str:
    if queue.is_paused:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        return f"paused{by}" + (f": {queue.pause_reason}" if queue.pause_reason else "")
    return "ok" if queue.served_by else "no worker"
