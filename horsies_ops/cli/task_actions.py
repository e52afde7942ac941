"""The commands `task requeue|fail|cancel|expire|retry`: plan, confirm, apply, report; and their filter options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from horsies.errors import ErrorCode, ExitCode, HorsiesError, NotFound, Refused, UsageError
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.task import TaskStatus
from horsies.model.text import sanitize_text
from horsies_ops.cli.option_types import (
    ActorOption,
    DryRunOption,
    ExitCodeOption,
    KillOption,
    ReasonOption,
    YesOption,
    duration_option,
    flatten,
    full_id_option,
    list_option,
    parse_full_or_short_id,
    require_terminal,
    resolve_task_id,
)
from horsies_ops.cli.options import GlobalOptions, JsonOption, hide_options, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    print_error,
    print_json,
    print_line,
    print_message,
    print_rows,
    print_warning,
    print_warnings,
    progress_bar,
)
from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, parse_filter

if TYPE_CHECKING:
    from horsies_ops.actions.plan import Plan, PlanGroup
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops

PAST_TENSE: Final = {
    Action.REQUEUE: "requeued",
    Action.FAIL: "failed",
    Action.CANCEL: "cancelled",
    Action.EXPIRE: "expired",
    Action.RETRY: "sent again",
}
MAX_TASKS_LISTED: Final = 20
"""How many tasks the text output lists; --json lists more."""
GROUP_COLUMNS: tuple[TableColumn[PlanGroup], ...] = (
    TableColumn("count", lambda group: f"{group.count:,}", right=True),
    TableColumn("status", lambda group: group.status),
    TableColumn("error", lambda group: sanitize_text(group.error_code or "", limit=40)),
    TableColumn("effect", lambda group: group.effect),
)


async def plan_and_apply(
    ops: Ops,
    action: Action,
    selection: Sequence[str] | TaskFilter,
    options: ActionOptions,
    *,
    dry_run: bool,
    is_confirmed: bool,
    shows_progress: bool,
) -> tuple[Plan, ActionReport]:
    """Plan an action, ask for confirmation if needed, and apply it; a dry run is only recorded."""
    selected = selection
    if not isinstance(selection, TaskFilter):
        selected = [await resolve_task_id(ops, id_text) for id_text in selection]
    plan = await ops.plan(action, selected, options)
    if dry_run:
        return plan, await ops.record_dry_run(plan)
    if plan.targets and (plan.selector.filter is not None or options.may_touch_running) and not is_confirmed:
        _confirm(plan)
    with progress_bar(action, enabled=shows_progress) as progress:
        return plan, await ops.apply(plan, progress=progress)


def _confirm(plan: Plan) -> None:
    """Show the plan and ask; raises Abort unless the answer is yes."""
    require_terminal(
        f"this would {plan.action} {len(plan.targets):,} tasks and",
        hint="use --yes to confirm, or --dry-run to preview",
    )
    if plan.selector.filter is not None:
        print_message(f"filter: {format_filter(plan.selector.filter)}")
    for group in plan.groups:
        print_message(f"{group.count:>8,}  {group.status:<9}  {group.error_code or '-'}  {group.effect}")
    for warning in plan.warnings:
        print_warning(warning)
    typer.confirm(f"{plan.action} {len(plan.targets):,} of {plan.matched:,} tasks?", abort=True, err=True)


def action_document(plan: Plan, report: ActionReport) -> dict[str, Any]:
    """Return the document of `task ACTION --json`."""
    return {
        "action": report.action,
        "dry_run": report.is_dry_run,
        "matched": report.matched,
        "would_affect": len(plan.targets),
        "affected": report.affected,
        "skipped_count": report.skipped_count,
        "skipped": [skipped._asdict() for skipped in report.skipped],
        "task_ids": report.task_ids,
        "new_ids": report.new_ids,
        "audit_id": report.audit_id,
        "groups": plan.groups,
        "warnings": report.warnings,
    }


def _print_report(options: GlobalOptions, plan: Plan, report: ActionReport) -> None:
    if plan.groups:
        print_rows(plan.groups, GROUP_COLUMNS)
    # Only a retry has new ids.
    for old, new in list(zip(report.task_ids, report.new_ids, strict=False))[:MAX_TASKS_LISTED]:
        print_line(f"{old} resent as {new}")
    if report.is_dry_run:
        print_line(f"would {plan.action} {len(plan.targets):,} of {plan.matched:,} tasks")
    else:
        counts = f"{PAST_TENSE[plan.action]} {report.affected:,}, skipped {report.skipped_count:,}"
        print_line(f"{counts}; audit {report.audit_id}")
    print_warnings(options, report.warnings)
    for skipped in report.skipped[:MAX_TASKS_LISTED]:
        options.print_message(f"skipped {skipped.id}: {skipped.why}")


def _exit_code(plan: Plan, report: ActionReport, *, has_exit_code: bool) -> ExitCode:
    """Return 5 if no task has one of the ids, 6 if none could be changed, 3 for a dry run that found work.

    For 5 and 6 it also prints the error.
    """
    if plan.selector.ids is not None and not plan.matched:
        return _print_failure(NotFound("no task with these ids", hint="horsies task list --full shows full ids"))
    if report.is_dry_run:
        return ExitCode.WORK_FOUND if has_exit_code and plan.targets else ExitCode.DONE
    if plan.matched and not report.affected:
        message = f"no task is in a state in which it can be {PAST_TENSE[plan.action]}"
        return _print_failure(Refused(message, hint=_workflow_hint(plan, report)))
    return ExitCode.DONE


def _workflow_hint(plan: Plan, report: ActionReport) -> str | None:
    """Return a hint if tasks were skipped because they belong to a workflow run."""
    if all(skipped.why != SkipReason.TASK_IS_WORKFLOW_TASK for skipped in report.skipped):
        return None
    return f"act on the run instead: horsies task show prints its id, then horsies workflow {plan.action} ID"


def _print_failure(error: HorsiesError) -> ExitCode:
    print_error(error)
    return error.exit_code


# Filter options


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Options that select tasks."""

    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Filter as in the TUI: 'status:failed age<1h'.")
    ] = None
    status: Annotated[list[Any] | None, list_option("Only tasks with this status.", choices=TaskStatus)] = None
    queue: Annotated[list[Any] | None, list_option("Only tasks in this queue.")] = None
    name: Annotated[list[Any] | None, list_option("Only tasks with this task name; * and ? are wildcards.")] = None
    error: Annotated[list[Any] | None, list_option("Only tasks with this error code; * and ? are wildcards.")] = None
    worker: Annotated[UUID | None, full_id_option("Only tasks owned by this worker, now or last.")] = None
    workflow: Annotated[UUID | None, full_id_option("Only tasks of this workflow run.")] = None
    flag: Annotated[str | None, typer.Option(metavar="NAME", help="Only tasks with this flag.")] = None
    older_than: Annotated[timedelta | None, duration_option("Only tasks older than this, such as 5m.")] = None
    newer_than: Annotated[timedelta | None, duration_option("Only tasks newer than this, such as 2h.")] = None

    @property
    def filter(self) -> TaskFilter:
        """The filter from `--filter`, or from the other options combined."""
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
        return options if self.filter_ is None else _parse_filter_option(self.filter_, options)


def _parse_filter_option(text: str, options: TaskFilter) -> TaskFilter:
    """Parse --filter; raises UsageError if other filter options are given too."""
    if not options.is_empty:
        raise UsageError(
            "--filter cannot be combined with other filter options; add them to the filter text",
            code=ErrorCode.CLI_INVALID_ARGS,
        )
    parsed = parse_filter(text)
    if isinstance(parsed, FilterFault):
        message = f"--filter, at character {parsed.position + 1}: {parsed.message}"
        raise UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=parsed.hint)
    if parsed.is_empty:
        raise UsageError("--filter is empty", code=ErrorCode.CLI_INVALID_ARGS, hint="for example status:failed")
    return parsed


# The commands

HELP: Final = {
    Action.REQUEUE: "Return claimed or running tasks to their queue.",
    Action.FAIL: "Mark unfinished tasks as failed.",
    Action.CANCEL: "Cancel tasks that have not finished.",
    Action.EXPIRE: "Expire tasks that have not started.",
    Action.RETRY: "Send finished tasks again as new tasks.",
}
EXAMPLE_SELECTIONS: Final = {
    Action.REQUEUE: "9f3ac06b",
    Action.FAIL: "--worker 019a8c41-7d0e-7c55-9d1c-2f1aa91f03c2 --include-running",
    Action.CANCEL: "--status pending --name 'mail.*'",
    Action.EXPIRE: "--status pending --older-than 1d",
    Action.RETRY: "--error SMTP_DOWN --newer-than 1h",
}
UNSUPPORTED_OPTIONS: Final = {
    Action.REQUEUE: {"kill"},
    Action.FAIL: {"kill"},
    Action.CANCEL: set[str](),
    Action.EXPIRE: {"kill", "include_running"},
    Action.RETRY: {"kill", "include_running"},
}


def add_actions(app: typer.Typer) -> None:
    """Add one command per action to the group `task`."""
    for action in Action:
        example = f"Example: horsies task {action} {EXAMPLE_SELECTIONS[action]} --dry-run"
        help_text = f"{HELP[action]}\n\nExit 5: no such task; 6: no task could be changed.\n\n{example}"
        app.command(action.value, help=help_text)(with_global_options(_command(action)))


def _command(action: Action) -> Callable[..., int]:
    def command(
        options: GlobalOptions,
        ids: Annotated[
            list[str] | None,
            typer.Argument(
                parser=parse_full_or_short_id, metavar="ID", help="Full ids of tasks, or their last eight digits."
            ),
        ] = None,
        *,
        selection: FilterOptions,
        include_running: Annotated[
            bool, typer.Option("--include-running", help="Also act on running tasks; asks for confirmation.")
        ] = False,
        kill: KillOption = False,
        limit: Annotated[
            int | None, typer.Option(min=1, metavar="N", help="Most tasks to change, newest first.")
        ] = None,
        reason: ReasonOption = None,
        actor: ActorOption = None,
        dry_run: DryRunOption = False,
        exit_code: ExitCodeOption = False,
        yes: YesOption = False,
        json: JsonOption = False,
    ) -> int:
        action_options = ActionOptions(include_running=include_running, kill=kill, reason=reason, limit=limit)
        act = partial(
            plan_and_apply,
            action=action,
            selection=_selected_tasks(ids, selection.filter),
            options=action_options,
            dry_run=dry_run,
            is_confirmed=yes,
            shows_progress=not (json or options.quiet),
        )
        plan, report = options.act(act, actor=actor)
        if json:
            print_json(action_document(plan, report))
        else:
            _print_report(options, plan, report)
        return _exit_code(plan, report, has_exit_code=exit_code)

    return hide_options(command, UNSUPPORTED_OPTIONS[action])


def _selected_tasks(ids: list[str] | None, task_filter: TaskFilter) -> Sequence[str] | TaskFilter:
    """Return the ids or the filter; both or none is an error, so that no action hits all tasks by accident."""
    if bool(ids) != task_filter.is_empty:
        both = "both ids and a filter given; use one of them"
        neither = "no tasks selected: give ids, or a filter such as --status failed"
        hint = "preview an action with --dry-run; --help lists the filters"
        raise UsageError(both if ids else neither, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
    return ids or task_filter
