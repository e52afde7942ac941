"""The commands that act on tasks. They take the same options, but for those that make no sense for one of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Annotated, Final

import typer

from horsies.errors import ErrorCode, UsageError
from horsies.model.actions import Action, ActionOptions
from horsies_ops.cli.option_types import identity_or_short_form
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options
from horsies_ops.cli.task_acting import Manner, act
from horsies_ops.cli.task_filters import FilterOptions, with_filter_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from horsies_ops.reads.filter import TaskFilter

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
    @with_filter_options
    def command(
        options: GlobalOptions,
        ids: Annotated[
            list[str] | None,
            typer.Argument(
                parser=identity_or_short_form, metavar="ID", help="Whole ids, or the eight digits that a list shows."
            ),
        ] = None,
        *,
        which: FilterOptions,
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
        how = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        manner = Manner(
            actor=actor, is_dry_run=dry_run, is_sure=yes, has_exit_code=exit_code, is_json=json, is_quiet=options.quiet
        )
        return asyncio.run(act(options.settings().app, action, _meant(ids, which), how, manner))

    return _without(LEFT_OUT[action], command)


def _without(left_out: AbstractSet[str], command: Callable[..., int]) -> Callable[..., int]:
    """The command without these options, which keep their defaults."""
    signature = inspect.signature(command)
    kept = [each for name, each in signature.parameters.items() if name not in left_out]
    command.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def _meant(ids: list[str] | None, which: FilterOptions) -> Sequence[str] | TaskFilter:
    """The tasks that the command line means: by their ids, or by a filter, and never all there are by accident."""
    wanted = which.filter
    if bool(ids) != wanted.is_empty:
        both = "ids and a filter are given; an action takes one of them"
        neither = "no task is named: give ids, or a filter such as --status failed"
        raise UsageError(both if ids else neither, code=ErrorCode.CLI_INVALID_ARGS, hint="see --help")
    return ids or wanted
