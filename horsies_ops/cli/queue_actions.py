"""The commands that pause and resume queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.errors import ConfigurationError
from horsies.model.text import safe
from horsies_ops.actions.queues import check_name
from horsies_ops.cli.output import print_json, print_line, warn
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from horsies_ops.actions.report import ActionReport


def _name(text: str) -> str:
    try:
        check_name(text)
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None
    return text


Queue = Annotated[str, typer.Argument(parser=_name, metavar="QUEUE", help="The queue's name.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit and for whoever looks.")]
As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")]


def add_actions(app: typer.Typer) -> None:
    """Give the group `queue` what changes queues."""
    app.command()(with_global_options(pause))
    app.command()(with_global_options(resume))


def pause(options: GlobalOptions, queue: Queue, *, reason: Reason = None, actor: As = None, json: Json = False) -> None:
    """Claim nothing new from a queue; what runs goes on."""
    done = asyncio.run(_act(options, "pause", queue, reason, actor))
    _show(options, done, "paused" if done.affected else "was paused already", queue, json=json)


def resume(
    options: GlobalOptions, queue: Queue, *, reason: Reason = None, actor: As = None, json: Json = False
) -> None:
    """Claim from a paused queue again."""
    done = asyncio.run(_act(options, "resume", queue, reason, actor))
    _show(options, done, "resumed" if done.affected else "was not paused", queue, json=json)


async def _act(options: GlobalOptions, verb: str, queue: str, reason: str | None, actor: str | None) -> ActionReport:
    async with open_ops(options.settings().app, actor=actor, via="cli") as ops:
        change = ops.pause_queue if verb == "pause" else ops.resume_queue
        return await change(queue, reason=reason)


def _show(options: GlobalOptions, done: ActionReport, what: str, queue: str, *, json: bool) -> None:
    if json:
        print_json(
            {"action": done.action, "queue": queue, "changed": done.affected > 0, "audit_id": done.audit_id,
             "warnings": done.warnings}
        )  # fmt: skip
        return
    print_line(f"{safe(queue)} {what}")
    if not options.quiet:
        for warning in done.warnings:
            warn(warning)
