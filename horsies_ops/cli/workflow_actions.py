"""The commands that pause, resume, cancel and retry runs of workflows."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.errors import ErrorCode, ExitCode, UsageError
from horsies_ops.cli.naming import run_named
from horsies_ops.cli.option_types import Run
from horsies_ops.cli.output import print_json, print_line, report
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options
from horsies_ops.cli.workflow_refusals import refusal
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from horsies.errors import HorsiesError
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops

    Change = Callable[[Ops, UUID], Awaitable[ActionReport]]

Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit.")]
As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")]


def add_actions(app: typer.Typer) -> None:
    """Give the group `workflow` what changes runs."""
    for command in (pause, resume, cancel, retry):
        app.command()(with_global_options(command))


def pause(options: GlobalOptions, run: Run, *, reason: Reason = None, actor: As = None, json: Json = False) -> int:
    """Start nothing of a run until it is resumed; what runs may end. Exit 5: no such run; 6: it is not running."""
    return _act(options, run, actor, "paused", lambda ops, run_id: ops.pause_workflow(run_id, reason=reason), json=json)


def resume(options: GlobalOptions, run: Run, *, reason: Reason = None, actor: As = None, json: Json = False) -> int:
    """Let a paused run go on. Exit 5: no such run; 6: it is not paused."""
    return _act(
        options, run, actor, "resumed", lambda ops, run_id: ops.resume_workflow(run_id, reason=reason), json=json
    )


def cancel(
    options: GlobalOptions,
    run: Run,
    *,
    kill: Annotated[bool, typer.Option("--kill", help="End the processes of its running tasks; asks.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Reason = None,
    actor: As = None,
    json: Json = False,
) -> int:
    """End a run and all below it. Exit 5: no such run; 6: it has ended."""
    if kill and not yes:
        _ask(run)
    return _act(
        options,
        run,
        actor,
        "cancelled",
        lambda ops, run_id: ops.cancel_workflow(run_id, kill=kill, reason=reason),
        json=json,
    )


def retry(options: GlobalOptions, run: Run, *, reason: Reason = None, actor: As = None, json: Json = False) -> int:
    """Let a run that has ended begin again where it failed. Exit 5: no such run; 6: nothing of it can."""
    return _act(
        options, run, actor, "begun again", lambda ops, run_id: ops.retry_workflow(run_id, reason=reason), json=json
    )


def _ask(run: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "--kill ends running code, and there is no terminal to ask on",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="--yes goes ahead",
        )
    typer.confirm(f"cancel the run {run} and kill what runs of it?", abort=True, err=True)


def _act(
    options: GlobalOptions,
    run: str,
    actor: str | None,
    what: str,
    change: Change,
    *,
    json: bool,
) -> int:
    done, refused = asyncio.run(_changed(options, run, actor, change))
    if json:
        print_json(
            {
                "action": done.action,
                "changed": done.affected > 0,
                "nodes": done.nodes,
                "why": done.skipped[0].why if done.skipped else None,
                "hint": None if refused is None else refused.help_text,
                "audit_id": done.audit_id,
            }
        )
    if refused is not None:
        report(refused)
        return refused.exit_code
    if not json:
        print_line(f"{what}, {done.nodes:,} nodes" if done.nodes else what)
    return ExitCode.DONE


async def _changed(
    options: GlobalOptions, run: str, actor: str | None, change: Change
) -> tuple[ActionReport, HorsiesError | None]:
    """What was done, or why nothing was, as the run stood a moment later."""
    async with open_ops(options.settings().app, actor=actor, via="cli") as ops:
        done = await change(ops, await run_named(ops, run))
        if done.affected:
            return done, None
        (skipped,) = done.skipped
        detail = await ops.workflow(skipped.id)
        return done, refusal(done.action, skipped.id, None if detail is None else detail.run)
