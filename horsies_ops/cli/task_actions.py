"""Acting on tasks: shown, asked for where it is due, carried out, reported."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any, Final, get_type_hints
from uuid import UUID

import typer

from horsies.errors import ErrorCode, ExitCode, HorsiesError, NotFound, Refused, UsageError
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.settings import AppConfig
from horsies.model.text import sanitize_text
from horsies_ops.actions.plan import Plan, PlanGroup, Selector
from horsies_ops.actions.report import ActionReport
from horsies_ops.cli.ids import resolve_task_id
from horsies_ops.cli.option_types import (
    duration_option,
    flatten,
    full_id_option,
    list_option,
    parse_full_or_short_id,
    parse_task_statuses,
)
from horsies_ops.cli.options import GlobalOptions, JsonOption, with_global_options
from horsies_ops.cli.output import (
    print_error,
    print_json,
    print_line,
    print_message,
    print_table,
    print_warning,
    progress_bar,
)
from horsies_ops.ops import Ops, open_ops
from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, parse_filter

DONE: Final = {
    Action.REQUEUE: "requeued",
    Action.FAIL: "failed",
    Action.CANCEL: "cancelled",
    Action.EXPIRE: "expired",
    Action.RETRY: "sent again",
}
MAX_TASKS_LISTED: Final = 20
"""So many tasks are named one by one; the document has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationOptions:
    """How a command goes about an action: in whose name, asking or not, saying what."""

    actor: str | None
    is_dry_run: bool
    is_confirmed: bool
    has_exit_code: bool
    is_json: bool
    is_quiet: bool


async def act(
    settings: AppConfig,
    action: Action,
    which: Sequence[str] | TaskFilter,
    options: ActionOptions,
    manner: InvocationOptions,
) -> ExitCode:
    """Plan, ask, apply and print; the exit code says whether anything was found and could be moved."""
    async with open_ops(settings, actor=manner.actor, via="cli") as ops:
        plan = await ops.plan(action, await _selector(ops, which), options)
        if not manner.is_dry_run and plan.targets and _has_to_ask(plan):
            _ask(plan, manner)
        done = await _carry_out(ops, plan, manner)
    if manner.is_json:
        print_json(document(plan, done))
    else:
        _print(plan, done, manner)
    return _exit_code(plan, done, manner)


async def _selector(ops: Ops, which: Sequence[str] | TaskFilter) -> Selector:
    if isinstance(which, TaskFilter):
        return Selector.matching(which)
    return Selector.of_ids([await resolve_task_id(ops, each) for each in which])


async def _carry_out(ops: Ops, plan: Plan, manner: InvocationOptions) -> ActionReport:
    if manner.is_dry_run:
        return await ops.record_dry_run(plan)
    with progress_bar(plan.action, wanted=not (manner.is_json or manner.is_quiet)) as progress:
        return await ops.apply(plan, progress=progress)


def _has_to_ask(plan: Plan) -> bool:
    return plan.selector.filter is not None or plan.options.may_touch_running


def _ask(plan: Plan, manner: InvocationOptions) -> None:
    """Show what is meant and how many that is, and go on only after a yes."""
    if manner.is_confirmed:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {plan.action} {len(plan.targets):,} tasks, and there is no terminal to ask on",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="--yes goes ahead, --dry-run shows what would happen",
        )
    if plan.selector.filter is not None:
        print_message(f"filter: {format_filter(plan.selector.filter)}")
    for group in plan.groups:
        print_message(f"{group.count:>8,}  {group.status:<9}  {group.error_code or '-'}  {group.effect}")
    for warning in plan.warnings:
        print_warning(warning)
    typer.confirm(f"{plan.action} {len(plan.targets):,} of {plan.matched:,} tasks?", abort=True, err=True)


def document(plan: Plan, done: ActionReport) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "action": done.action,
        "dry_run": done.is_dry_run,
        "matched": done.matched,
        "would_affect": len(plan.targets),
        "affected": done.affected,
        "skipped_count": done.skipped_count,
        "skipped": [{"id": each.id, "why": each.why} for each in done.skipped],
        "task_ids": done.task_ids,
        "new_ids": done.new_ids,
        "audit_id": done.audit_id,
        "groups": plan.groups,
        "warnings": done.warnings,
    }


def _print(plan: Plan, done: ActionReport, manner: InvocationOptions) -> None:
    if plan.groups:
        print_table(("count", "status", "error", "what"), [_row(group) for group in plan.groups], right=("count",))
    for old, new in list(zip(done.task_ids, done.new_ids, strict=False))[:MAX_TASKS_LISTED]:
        print_line(f"{old} is sent again as {new}")
    if manner.is_dry_run:
        print_line(f"would {plan.action} {len(plan.targets):,} of {plan.matched:,} tasks")
    else:
        print_line(f"{DONE[plan.action]} {done.affected:,}, skipped {done.skipped_count:,}; audit {done.audit_id}")
    if not manner.is_quiet:
        for warning in done.warnings:
            print_warning(warning)
        for each in done.skipped[:MAX_TASKS_LISTED]:
            print_message(f"skipped {each.id}: {each.why}")


def _row(group: PlanGroup) -> Sequence[str]:
    return f"{group.count:,}", group.status, sanitize_text(group.error_code or "", limit=40), group.effect


def _exit_code(plan: Plan, done: ActionReport, manner: InvocationOptions) -> ExitCode:
    is_by_id = plan.selector.ids is not None
    if is_by_id and not plan.matched:
        return _failed(NotFound("none of these tasks exists", hint="horsies task list --full shows whole ids"))
    if manner.is_dry_run:
        return ExitCode.WORK_FOUND if manner.has_exit_code and plan.targets else ExitCode.DONE
    if plan.matched and not done.affected:
        message = f"no task was in a state in which it can be {DONE[plan.action]}"
        return _failed(Refused(message, hint=_instead(plan, done)))
    return ExitCode.DONE


def _instead(plan: Plan, done: ActionReport) -> str | None:
    """What helps where tasks were passed over because they are steps of a run."""
    if all(skipped.why != SkipReason.TASK_IS_WORKFLOW_TASK for skipped in done.skipped):
        return None
    return f"a step goes with its run: horsies task show names it, horsies workflow {plan.action} ID does it"


def _failed(error: HorsiesError) -> ExitCode:
    print_error(error)
    return error.exit_code


# Filters on the command line: by options, or in one line as in the screens.


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The options that say which tasks are meant."""

    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="As in the screens: 'status:failed age<1h'.")
    ] = None
    status: Annotated[list[Any] | None, list_option("Tasks in one of these states.", parser=parse_task_statuses)] = None
    queue: Annotated[list[Any] | None, list_option("Tasks of these queues.")] = None
    name: Annotated[list[Any] | None, list_option("Tasks of these names; * and ? stand for anything.")] = None
    error: Annotated[list[Any] | None, list_option("Tasks that ended with these codes; globs as well.")] = None
    worker: Annotated[UUID | None, full_id_option("Tasks that this worker holds or last held.")] = None
    workflow: Annotated[UUID | None, full_id_option("Tasks of this run of a workflow.")] = None
    flag: Annotated[str | None, typer.Option(metavar="NAME", help="Tasks with this flag set.")] = None
    older_than: Annotated[timedelta | None, duration_option("Sent longer ago than this, as 5m or 2h.")] = None
    newer_than: Annotated[timedelta | None, duration_option("Sent more recently than this.")] = None

    @property
    def filter(self) -> TaskFilter:
        """What the options say together, or what `--filter` says, which stands alone."""
        options = TaskFilter(
            statuses=flatten(self.status),
            queues=flatten(self.queue),
            names=flatten(self.name),
            error_codes=flatten(self.error),
            worker_id=str(self.worker) if self.worker else None,
            workflow_id=str(self.workflow) if self.workflow else None,
            flag=self.flag,
            older_than=self.older_than,
            newer_than=self.newer_than,
        )
        return options if self.filter_ is None else _said(self.filter_, options)


def with_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a filter: it takes them as one `FilterOptions`, its parameter `which`."""
    signature = inspect.signature(command, eval_str=True)
    hints = get_type_hints(FilterOptions, include_extras=True)
    options = {
        field.name: inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(FilterOptions)
    }

    @functools.wraps(command)
    def wrapped(*arguments: Any, **values: Any) -> Any:
        which = FilterOptions(**{name: values.pop(name) for name in options})
        return command(*arguments, which=which, **values)

    every = [
        each for name, own in signature.parameters.items() for each in (options.values() if name == "which" else (own,))
    ]
    wrapped.__signature__ = signature.replace(parameters=every)  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped


def _said(text: str, options: TaskFilter) -> TaskFilter:
    """The filter that `text` says, where no option says another."""
    if not options.is_empty:
        raise UsageError("--filter stands alone: write the other options into it", code=ErrorCode.CLI_INVALID_ARGS)
    parsed = parse_filter(text)
    if isinstance(parsed, FilterFault):
        message = f"--filter, at character {parsed.position + 1}: {parsed.message}"
        raise UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=parsed.hint)
    if parsed.is_empty:
        raise UsageError("--filter names nothing", code=ErrorCode.CLI_INVALID_ARGS, hint="for example status:failed")
    return parsed


# The commands that act on tasks. They take the same options, but for those that make no sense for one of them.

HELP: Final = {
    Action.REQUEUE: "Make tasks claimable at once: claimed ones, delayed ones, running ones with --include-running.",
    Action.FAIL: "End tasks as FAILED with OPERATOR_FAILED; running ones with --include-running.",
    Action.CANCEL: "Cancel tasks; running ones with --include-running, and with --kill their processes too.",
    Action.EXPIRE: "End tasks that have not started as EXPIRED.",
    Action.RETRY: "Send tasks again that failed, were cancelled or expired, each as a new task.",
}
UNSUPPORTED_OPTIONS: Final = {
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
                parser=parse_full_or_short_id, metavar="ID", help="Whole ids, or the eight digits that a list shows."
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
        json: JsonOption = False,
    ) -> int:
        how = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        manner = InvocationOptions(
            actor=actor,
            is_dry_run=dry_run,
            is_confirmed=yes,
            has_exit_code=exit_code,
            is_json=json,
            is_quiet=options.quiet,
        )
        return asyncio.run(act(options.load_settings().app, action, _meant(ids, which), how, manner))

    return _without(UNSUPPORTED_OPTIONS[action], command)


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
