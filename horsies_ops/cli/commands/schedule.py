"""`horsies schedule`: list, inspect, pause, run and backfill schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.errors import ExitCode
from horsies.model.text import format_age, sanitize_text
from horsies_ops.cli.option_types import (
    ActorOption,
    DryRunOption,
    ReasonOption,
    YesOption,
    require_terminal,
)
from horsies_ops.cli.options import AppArgument, GlobalOptions, JsonOption, group, load_app, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    format_instant,
    format_value,
    print_facts,
    print_json,
    print_line,
    print_rows,
    print_warnings,
    row_document,
    show_rows,
)
from horsies_ops.reads.filters import parse_duration

if TYPE_CHECKING:
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.ops import Ops
    from horsies_ops.reads.schedules import ScheduleRow, ScheduleRunRow

schedule_app = group("schedule")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
CountOption = Annotated[int, typer.Option("--count", min=1, max=1000, metavar="N", help="Number of slots.")]


def _parse_instant(text: str) -> datetime:
    """Parse an instant, or a duration before now."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    try:
        return datetime.now(UTC) - parse_duration(text)
    except (ValueError, OverflowError):
        examples = "2026-03-28, 2026-03-28T12:00+01:00, 2h, 7d"
        raise typer.BadParameter(f"invalid time {text!r} (examples: {examples})") from None


# Reads


@schedule_app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only schedules that should have fired.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --overdue: exit with 3 if there is one.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """List schedules and their next runs.

    Example: horsies schedule list --overdue
    """
    schedules = [row for row in options.read(lambda ops: ops.list_schedules()) if row.is_overdue or not overdue]
    show_rows(options, "schedules", schedules, COLUMNS, json=json, document=_document)
    return ExitCode.WORK_FOUND if overdue and exit_code and schedules else ExitCode.DONE


@schedule_app.command("show")
@with_global_options
def show(options: GlobalOptions, name: NameArgument, *, json: JsonOption = False) -> None:
    """Show one schedule with its next slots and last runs.

    Example: horsies schedule show nightly
    """

    async def read(ops: Ops) -> tuple[ScheduleRow, tuple[ScheduleRunRow, ...]]:
        return await ops.schedule(name), await ops.schedule_history(name, limit=10)

    row, runs = options.read(read)
    if json:
        print_json({**_document(row), "next_slots": row.next_slots(10), "runs": [row_document(run) for run in runs]})
        return
    print_facts(_facts(row))
    if runs:
        print_rows(runs, RUN_COLUMNS)


@schedule_app.command("next")
@with_global_options
def next_(options: GlobalOptions, name: NameArgument, *, count: CountOption = 10, json: JsonOption = False) -> None:
    """Print the next slots of a schedule.

    Example: horsies schedule next nightly --count 3
    """
    row = options.read(lambda ops: ops.schedule(name))
    slots = row.next_slots(count)
    if json:
        print_json({"name": name, "fires": row.fires, "slots": slots})
        return
    if row.why_not_firing:
        options.print_message(sanitize_text(f"{name} is {row.why_not_firing}"))
    for slot in slots:
        print_line(format_value(slot))


@schedule_app.command("history")
@with_global_options
def history(
    options: GlobalOptions,
    name: NameArgument,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="Most rows to list.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the runs of a schedule, newest slot first.

    Example: horsies schedule history nightly
    """

    async def read(ops: Ops) -> tuple[ScheduleRunRow, ...]:
        await ops.schedule(name)
        return await ops.schedule_history(name, limit=limit)

    show_rows(options, "runs", options.read(read), RUN_COLUMNS, json=json)


# Actions


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFlags:
    """Options of every action."""

    reason: ReasonOption = None
    actor: ActorOption = None
    dry_run: DryRunOption = False
    json: JsonOption = False


def _act(
    options: GlobalOptions,
    flags: ActionFlags,
    action: Callable[[Ops], Callable[..., Awaitable[ActionReport]]],
    texts: tuple[str, str, str],
) -> int:
    """Run an action and print its report; `texts` say what changed, would change or did not change."""
    report = options.act(lambda ops: action(ops)(reason=flags.reason, dry_run=flags.dry_run), actor=flags.actor)
    changed, planned, unchanged = texts
    if flags.json:
        print_json(
            {
                "action": report.action,
                "matched": report.matched,
                "affected": report.affected,
                "skipped": report.skipped_count,
                "dry_run": report.is_dry_run,
                "ids": report.new_ids,
                "audit_id": report.audit_id,
                "warnings": report.warnings,
            }
        )
    else:
        text = planned if report.is_dry_run and report.matched else changed if report.affected else unchanged
        count = report.matched if report.is_dry_run else report.affected
        ids = ", ".join(map(str, report.new_ids[:3]))
        # Not `format`: the name of a schedule may contain braces.
        print_line(sanitize_text(text.replace("{count}", f"{count:,}").replace("{id}", ids)))
        print_warnings(options, report.warnings)
    return ExitCode.DONE


@schedule_app.command("pause")
@with_global_options
def pause(options: GlobalOptions, name: NameArgument, *, flags: ActionFlags) -> int:
    """Pause a schedule; the pause survives deploys.

    Example: horsies schedule pause nightly --reason "month end"
    """
    texts = (f"{name} paused", f"would pause {name}", f"{name} was paused already")
    return _act(options, flags, lambda ops: partial(ops.pause_schedule, name), texts)


@schedule_app.command("resume")
@with_global_options
def resume(
    options: GlobalOptions,
    name: NameArgument,
    *,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Continue where it was paused [default: at the first slot after now]")
    ] = False,
    flags: ActionFlags,
) -> int:
    """Resume a paused schedule.

    Example: horsies schedule resume nightly --catch-up
    """
    texts = (f"{name} resumed", f"would resume {name}", f"{name} was not paused")
    return _act(options, flags, lambda ops: partial(ops.resume_schedule, name, catch_up=catch_up), texts)


@schedule_app.command("run")
@with_global_options
def run(options: GlobalOptions, name: NameArgument, *, flags: ActionFlags) -> int:
    """Run a schedule now, besides its slots.

    Example: horsies schedule run nightly
    """
    texts = (f"{name} started: {{id}}", f"would run {name} now", f"{name} was not started")
    return _act(options, flags, lambda ops: partial(ops.run_schedule, name), texts)


@schedule_app.command("backfill")
@with_global_options
def backfill(
    options: GlobalOptions,
    name: NameArgument,
    *,
    since: Annotated[
        datetime,
        typer.Option(
            "--from", parser=_parse_instant, metavar="TIME", help="First slot: an instant, or 2d for two days ago."
        ),
    ],
    until: Annotated[
        datetime | None,
        typer.Option("--until", parser=_parse_instant, metavar="TIME", help="Last slot [default: now]"),
    ] = None,
    yes: YesOption = False,
    flags: ActionFlags,
) -> int:
    """Fire the slots of a range that were skipped, refused or missed; slots that fired are left alone.

    Example: horsies schedule backfill nightly --from 2d --dry-run
    """
    last = until or datetime.now(UTC) + timedelta(minutes=1)  # the database clock decides what is past
    if not flags.dry_run and not yes:
        plan = options.act(lambda ops: ops.plan_backfill(name, since, last), actor=flags.actor)
        if plan.slots:
            question = f"backfill {len(plan.slots):,} slots of {name}"
            require_terminal(f"this would {question} and", hint="use --yes to confirm, or --dry-run to preview")
            typer.confirm(f"{question}?", abort=True, err=True)
    texts = ("{count} slots fired", "would fire {count} slots", "no slots to fire")
    return _act(options, flags, lambda ops: partial(ops.backfill_schedule, name, since, last), texts)


@schedule_app.command("sync")
@with_global_options
def sync(options: GlobalOptions, locator: AppArgument = None, *, flags: ActionFlags) -> int:
    """Store the definitions of an app, also after a rollback to older code.

    Example: horsies schedule sync shop:app
    """
    from horsies.client.schedules import encode_schedules

    user_app = load_app(options, locator)
    encoded = encode_schedules(user_app, user_app.get_schedules())
    texts = ("{count} schedules changed", "would change {count} schedules", "no schedule changed")
    return _act(options, flags, lambda ops: partial(ops.sync_schedules, encoded.owner, encoded.definitions), texts)


@schedule_app.command("forget")
@with_global_options
def forget(options: GlobalOptions, name: NameArgument, *, flags: ActionFlags) -> int:
    """Delete a schedule that no running app defines, with its history.

    Example: horsies schedule forget nightly
    """
    texts = (f"{name} forgotten", f"would delete {name} and its history", f"{name} was not deleted")
    return _act(options, flags, lambda ops: partial(ops.forget_schedule, name), texts)


# Rendering


def _document(row: ScheduleRow) -> dict[str, object]:
    from horsies_ops.reads.schedules import schedule_document

    return {**row_document(row, definition=None, anchor_at=None), **schedule_document(row)}


def _pattern(row: ScheduleRow) -> str:
    return row.pattern if row.timezone == "UTC" else f"{row.pattern} {row.timezone}"


def _next_run(row: ScheduleRow) -> str:
    if row.is_paused:
        return "paused"
    if not row.fires:
        return row.state
    if row.due_in is None:
        return "never" if row.revision else "not stored"
    late = "overdue" if row.is_overdue else "late"
    return f"in {format_age(row.due_in)}" if row.due_in >= timedelta() else f"{late} {format_age(-row.due_in)}"


def _facts(row: ScheduleRow) -> dict[str, str]:
    facts = {
        "schedule": row.name,
        "workflow" if row.is_workflow else "task": row.target or "?",
        "pattern": _pattern(row),
        "state": f"paused by {row.paused_by}: {row.pause_reason or '-'}" if row.is_paused else row.state,
        "owner": f"{row.owner} ({row.source}, revision {row.revision})",
        "overlap": row.overlap,
        "runs": f"{row.run_count:,}",
        "failures": f"{row.failures} failed and {row.refusals} refused slots in a row",
        "next": ", ".join(format_value(slot) for slot in row.next_slots(3)) or "-",
    }
    return {name: sanitize_text(value) for name, value in facts.items()}


COLUMNS: tuple[TableColumn[ScheduleRow], ...] = (
    TableColumn("schedule", lambda row: row.name),
    TableColumn("runs", lambda row: row.target or "?"),
    TableColumn("pattern", _pattern),
    TableColumn("next", _next_run),
    TableColumn("last", lambda row: format_instant(row.last_run_at) if row.last_run_at else "-"),
    TableColumn("lag", lambda row: format_age(row.lag)),
    TableColumn("result", lambda row: row.last_error_code or row.last_status or "-"),
    TableColumn("fired", lambda row: f"{row.run_count:,}", right=True),
)
RUN_COLUMNS: tuple[TableColumn[ScheduleRunRow], ...] = (
    TableColumn("slot", lambda run: format_value(run.slot_at)),
    TableColumn("kind", lambda run: run.kind),
    TableColumn("outcome", lambda run: run.outcome),
    TableColumn("lag", lambda run: format_age(run.lag)),
    TableColumn("result", lambda run: run.error_code or run.status or "-"),
    TableColumn("id", lambda run: str(run.task_id or run.workflow_id or "-")),
    TableColumn("reason", lambda run: run.reason or ""),
)
