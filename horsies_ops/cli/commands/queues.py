"""`horsies queue`: list, pause and resume queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.text import format_age, sanitize_text
from horsies_ops.cli.option_types import ActorOption, ReasonOption
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    print_json,
    print_line,
    print_warnings,
    row_document,
    show_rows,
)

if TYPE_CHECKING:
    from horsies_ops.reads.overview import QueueRow

queue_app = group("queue")


@queue_app.command("list")
@with_global_options
def list_queues(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """List queues with their counts and limits.

    Example: horsies queue list --json
    """
    show_rows(
        options,
        "queues",
        _read_queues(options),
        QUEUE_COLUMNS,
        json=json,
        document=lambda queue: {**row_document(queue), "paused": queue.is_paused},
    )


def _parse_queue_name(text: str) -> str:
    from horsies_ops.actions.queues import validate_queue_name

    try:
        validate_queue_name(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None
    return text


QueueArgument = Annotated[str, typer.Argument(parser=_parse_queue_name, metavar="QUEUE", help="Name of the queue.")]


def _add_command(verb: str, summary: str, *, changed: str, unchanged: str) -> None:
    """Add the command that pauses or resumes a queue."""

    @queue_app.command(verb, help=f"{summary}\n\nExample: horsies queue {verb} mail --reason 'provider is down'")
    @with_global_options
    def command(
        options: GlobalOptions,
        queue: QueueArgument,
        *,
        reason: ReasonOption = None,
        actor: ActorOption = None,
        json: JsonOption = False,
    ) -> None:
        report = options.act(lambda ops: getattr(ops, f"{verb}_queue")(queue, reason=reason), actor=actor)
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
        print_line(f"{sanitize_text(queue)} {changed if report.affected else unchanged}")
        print_warnings(options, report.warnings)


_add_command(
    "pause",
    "Stop claiming from a queue; running tasks continue.",
    changed="paused",
    unchanged="was paused already",
)
_add_command("resume", "Claim from a paused queue again.", changed="resumed", unchanged="was not paused")


def _read_queues(options: GlobalOptions) -> Sequence[QueueRow]:
    try:
        return options.read(lambda ops: ops.list_queues())
    except ConfigurationError as error:
        # A database without our tables has no queues, so the list is empty.
        if error.code is not ErrorCode.SCHEMA_NOT_MIGRATED:
            raise
        hint = "the database has no horsies tables; run: horsies db migrate"
        options.print_message(options.add_connection_options(hint))
        return ()


def _running(queue: QueueRow) -> str:
    return f"{queue.running:,}" + ("" if queue.max_concurrency is None else f"/{queue.max_concurrency}")


def _done(queue: QueueRow) -> str:
    return f"{'~' if queue.is_estimate else ''}{queue.finished_last_minute - queue.failed_last_minute:,}"


def _state(queue: QueueRow) -> str:
    if queue.is_paused:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        return f"paused{by}" + (f": {queue.pause_reason}" if queue.pause_reason else "")
    return "ok" if queue.served_by else "no worker"


QUEUE_COLUMNS: tuple[TableColumn[QueueRow], ...] = (
    TableColumn("queue", lambda queue: queue.name),
    TableColumn("priority", lambda queue: "-" if queue.priority is None else str(queue.priority), right=True),
    TableColumn("pending", lambda queue: f"{queue.pending:,}", right=True),
    TableColumn("delayed", lambda queue: f"{queue.delayed:,}", right=True),
    TableColumn("claimed", lambda queue: f"{queue.claimed:,}", right=True),
    TableColumn("running", _running, right=True),
    TableColumn("oldest", lambda queue: format_age(queue.oldest_due_age), right=True),
    TableColumn("done/min", _done, right=True),
    TableColumn("failed/min", lambda queue: f"{queue.failed_last_minute:,}", right=True),
    TableColumn("workers", lambda queue: str(queue.served_by), right=True),
    TableColumn("state", _state),
)
