"""`horsies queue`: queues, listed, paused and resumed."""

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

# The commands that pause and resume queues.


def _name(text: str) -> str:
    try:
        validate_queue_name(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None
    return text


QueueArgument = Annotated[str, typer.Argument(parser=_name, metavar="QUEUE", help="The queue's name.")]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit and for whoever looks.")]
ActorOption = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")]


def add_actions(app: typer.Typer) -> None:
    """Give the group `queue` what changes queues."""
    app.command()(with_global_options(pause))
    app.command()(with_global_options(resume))


def pause(
    options: GlobalOptions,
    queue: QueueArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Claim nothing new from a queue; what runs goes on."""
    done = asyncio.run(_act(options, "pause", queue, reason, actor))
    _show(options, done, "paused" if done.affected else "was paused already", queue, json=json)


def resume(
    options: GlobalOptions,
    queue: QueueArgument,
    *,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> None:
    """Claim from a paused queue again."""
    done = asyncio.run(_act(options, "resume", queue, reason, actor))
    _show(options, done, "resumed" if done.affected else "was not paused", queue, json=json)


async def _act(options: GlobalOptions, verb: str, queue: str, reason: str | None, actor: str | None) -> ActionReport:
    async with open_ops(options.load_settings().app, actor=actor, via="cli") as ops:
        change = ops.pause_queue if verb == "pause" else ops.resume_queue
        return await change(queue, reason=reason)


def _show(options: GlobalOptions, done: ActionReport, what: str, queue: str, *, json: bool) -> None:
    if json:
        print_json(
            {
                "action": done.action,
                "queue": queue,
                "changed": done.affected > 0,
                "audit_id": done.audit_id,
                "warnings": done.warnings,
            }
        )
        return
    print_line(f"{sanitize_text(queue)} {what}")
    if not options.quiet:
        for warning in done.warnings:
            print_warning(warning)


app = group("queue")

_NUMBERS = ("priority", "pending", "delayed", "claimed", "running", "oldest", "done/min", "failed/min", "workers")


@app.command("list")
@with_global_options
def list_(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """List queues: what waits and runs in each, how fast, and who serves it."""
    queues = asyncio.run(_queues(options))
    if json:
        print_json({"queues": [_document(queue) for queue in queues]})
    elif queues:
        print_table(("queue", *_NUMBERS, "state"), [_cells(queue) for queue in queues], right=_NUMBERS)
    else:
        options.print_message("no queues")


add_actions(app)


async def _queues(options: GlobalOptions) -> Sequence[QueueRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        try:
            return await ops.list_queues()
        except ConfigurationError as error:
            # A database that is not ours yet has no queues, which is an answer too.
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
    return "ok" if queue.served_by else "nobody serves it"
