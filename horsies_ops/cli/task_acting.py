"""Acting on tasks: shown, asked for where it is due, carried out, reported."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from horsies.errors import ErrorCode, ExitCode, HorsiesError, NotFound, Refused, UsageError
from horsies.model.actions import Action, Refusal
from horsies.model.text import safe
from horsies_ops.actions.selector import Selector
from horsies_ops.cli.naming import task_named
from horsies_ops.cli.output import print_json, print_line, print_table, report, talk, warn
from horsies_ops.cli.progress import progress_bar
from horsies_ops.ops import open_ops
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.filter_language import filter_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.actions import ActionOptions
    from horsies.model.settings import AppConfig
    from horsies_ops.actions.plan import Plan, PlanGroup
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops

DONE: Final = {
    Action.REQUEUE: "requeued",
    Action.FAIL: "failed",
    Action.CANCEL: "cancelled",
    Action.EXPIRE: "expired",
    Action.RETRY: "sent again",
}
FEW: Final = 20
"""So many tasks are named one by one; the document has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a command goes about an action: in whose name, asking or not, saying what."""

    actor: str | None
    is_dry_run: bool
    is_sure: bool
    has_exit_code: bool
    is_json: bool
    is_quiet: bool


async def act(
    settings: AppConfig, action: Action, which: Sequence[str] | TaskFilter, options: ActionOptions, manner: Manner
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
    return Selector.of_ids([await task_named(ops, each) for each in which])


async def _carry_out(ops: Ops, plan: Plan, manner: Manner) -> ActionReport:
    if manner.is_dry_run:
        return await ops.look(plan)
    with progress_bar(plan.action, wanted=not (manner.is_json or manner.is_quiet)) as progress:
        return await ops.apply(plan, progress=progress)


def _has_to_ask(plan: Plan) -> bool:
    return plan.selector.filter is not None or plan.options.may_touch_running


def _ask(plan: Plan, manner: Manner) -> None:
    """Show what is meant and how many that is, and go on only after a yes."""
    if manner.is_sure:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {plan.action} {len(plan.targets):,} tasks, and there is no terminal to ask on",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="--yes goes ahead, --dry-run shows what would happen",
        )
    if plan.selector.filter is not None:
        talk(f"filter: {filter_text(plan.selector.filter)}")
    for group in plan.groups:
        talk(f"{group.count:>8,}  {group.status:<9}  {group.error_code or '-'}  {group.effect}")
    for warning in plan.warnings:
        warn(warning)
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


def _print(plan: Plan, done: ActionReport, manner: Manner) -> None:
    if plan.groups:
        print_table(("count", "status", "error", "what"), [_row(group) for group in plan.groups], right=("count",))
    for old, new in list(zip(done.task_ids, done.new_ids, strict=False))[:FEW]:
        print_line(f"{old} is sent again as {new}")
    if manner.is_dry_run:
        print_line(f"would {plan.action} {len(plan.targets):,} of {plan.matched:,} tasks")
    else:
        print_line(f"{DONE[plan.action]} {done.affected:,}, skipped {done.skipped_count:,}; audit {done.audit_id}")
    if not manner.is_quiet:
        for warning in done.warnings:
            warn(warning)
        for each in done.skipped[:FEW]:
            talk(f"skipped {each.id}: {each.why}")


def _row(group: PlanGroup) -> Sequence[str]:
    return f"{group.count:,}", group.status, safe(group.error_code or "", limit=40), group.effect


def _exit_code(plan: Plan, done: ActionReport, manner: Manner) -> ExitCode:
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
    if all(skipped.why != Refusal.TASK_IS_WORKFLOW_TASK for skipped in done.skipped):
        return None
    return f"a step goes with its run: horsies task show names it, horsies workflow {plan.action} ID does it"


def _failed(error: HorsiesError) -> ExitCode:
    report(error)
    return error.exit_code
