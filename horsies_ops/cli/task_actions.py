"""The commands that act on tasks. They take the same options, but for those that make no sense for one of them."""

from __future__ import annotations

import asyncio
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from horsies.errors import ErrorCode, UsageError
from horsies.model.actions import Action, ActionOptions
from horsies_ops.cli.option_types import flat, identity_or_short_form, one_id, several, statuses, time
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options
from horsies_ops.cli.task_acting import Manner, act
from horsies_ops.cli.task_filters import FilterText, combined
from horsies_ops.reads.filter import TaskFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HELP: Final = {
    Action.REQUEUE: "Make tasks claimable at once: claimed ones, delayed ones, running ones with --include-running.",
    Action.FAIL: "End tasks as FAILED with OPERATOR_FAILED; running ones with --include-running.",
    Action.CANCEL: "Cancel tasks; running ones with --include-running, and with --kill their processes too.",
    Action.EXPIRE: "End tasks that have not started as EXPIRED.",
    Action.RETRY: "Send tasks again that failed, were cancelled or expired, each as a new task.",
}
LEFT_OUT: Final = {
    Action.REQUEUE: {"kill"},
    Action.FAIL: {"kill"},
    Action.CANCEL: set[str](),
    Action.EXPIRE: {"kill", "include_running"},
    Action.RETRY: {"kill", "include_running"},
}
"""Options that an action does not have."""


def add_actions(app: typer.Typer) -> None:
    """Give the group `task` its five actions."""
    for action in Action:
        app.command(action.value, help=f"{HELP[action]} Exit 5: no such task; 6: none could be moved.")(
            with_global_options(_command(action))
        )


def _command(action: Action) -> Callable[..., int]:
    def command(
        options: GlobalOptions,
        ids: Annotated[
            list[str] | None,
            typer.Argument(
                parser=identity_or_short_form, metavar="ID", help="Whole ids, or the eight digits that a list shows."
            ),
        ] = None,
        *,
        filter_: FilterText = None,
        status: Annotated[list[Any] | None, several("Tasks in one of these states.", parser=statuses)] = None,
        queue: Annotated[list[Any] | None, several("Tasks of these queues.")] = None,
        name: Annotated[list[Any] | None, several("Tasks of these names; * and ? stand for anything.")] = None,
        error: Annotated[list[Any] | None, several("Tasks that ended with these codes; globs as well.")] = None,
        worker: Annotated[UUID | None, one_id("Tasks that this worker holds or last held.")] = None,
        workflow: Annotated[UUID | None, one_id("Tasks of this run of a workflow.")] = None,
        flag: Annotated[str | None, typer.Option(metavar="NAME", help="Tasks with this flag set.")] = None,
        older_than: Annotated[timedelta | None, time("Sent longer ago than this, as 5m or 2h.")] = None,
        newer_than: Annotated[timedelta | None, time("Sent more recently than this.")] = None,
        include_running: Annotated[
            bool, typer.Option("--include-running", help="Tasks that are running too; asks.")
        ] = False,
        kill: Annotated[bool, typer.Option("--kill", help="End the processes of running tasks; asks.")] = False,
        limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, the newest.")] = None,
        reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit and the task.")] = None,
        actor: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
        exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 when a dry run found work.")] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        json: Json = False,
    ) -> int:
        wanted = TaskFilter(
            statuses=flat(status),
            queues=flat(queue),
            names=flat(name),
            error_codes=flat(error),
            worker_id=str(worker) if worker else None,
            workflow_id=str(workflow) if workflow else None,
            flag=flag,
            older_than=older_than,
            newer_than=newer_than,
        )
        how = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        manner = Manner(
            actor=actor,
            is_dry_run=dry_run,
            is_sure=yes,
            has_exit_code=exit_code,
            is_json=json,
            is_quiet=options.quiet,
        )
        return asyncio.run(act(options.settings().app, action, _which(ids, wanted, filter_), how, manner))

    signature = inspect.signature(command, eval_str=True)
    kept = [each for name, each in signature.parameters.items() if name not in LEFT_OUT[action]]
    command.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def _which(ids: list[str] | None, options: TaskFilter, text: str | None) -> Sequence[str] | TaskFilter:
    """The tasks that the command line means: by their ids, or by a filter, and never all there are by accident."""
    is_filter = text is not None or not options.is_empty
    if bool(ids) == is_filter:
        both = "ids and a filter are given; an action takes one of them"
        neither = "no task is named: give ids, or a filter such as --status failed"
        raise UsageError(both if ids else neither, code=ErrorCode.CLI_INVALID_ARGS, hint="see --help")
    if ids:
        return ids
    return options if text is None else combined(options, text)
