"""`horsies task`: list, show and send tasks. The commands of actions on tasks are in `task_actions`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import ExitCode, NotFound
from horsies.model.task import TaskStatus, short_form
from horsies.model.text import format_age, sanitize_text
from horsies.model.waiting import WaitCause
from horsies_ops.cli.option_types import (
    AppOption,
    FullOption,
    duration_option,
    full_id_option,
    parse_full_or_short_id,
    resolve_task_id,
)
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    format_instant,
    json_line,
    print_json,
    print_line,
    print_rows,
    progress_line,
    row_document,
)
from horsies_ops.cli.task_actions import FilterOptions, add_actions
from horsies_ops.cli.task_detail import (
    MAX_VALUE_LENGTH,
    age_text,
    detail_document,
    due_text,
    print_detail,
    print_result,
)

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.tasks import TaskDetail, TaskPage, TaskSummary

task_app = group("task")

FOLLOW_INTERVAL_S = 0.5

TaskIdArgument = Annotated[
    str,
    typer.Argument(parser=parse_full_or_short_id, metavar="ID", help="Full id of the task, or its last eight digits."),
]
DEFAULT_WAIT: Any = "30s"  # a string: typer parses defaults like arguments, and shows them in the help


@task_app.command("list")
@with_global_options
def list_(
    options: GlobalOptions,
    *,
    selection: FilterOptions,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000_000, metavar="N", help="Most rows to list.")] = 50,
    after: Annotated[UUID | None, full_id_option("Continue after this cursor from the previous page.")] = None,
    search_all: Annotated[
        bool, typer.Option("--all", help="Search until --limit tasks are found or all were read, without a time limit.")
    ] = False,
    count: Annotated[
        bool, typer.Option("--count", help="Also count matching tasks; large counts are estimates.")
    ] = False,
    full: FullOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; `total` is null without --count.")
    ] = False,
) -> None:
    """List tasks that match the filters.

    Example: horsies task list --status failed --newer-than 1h
    """
    with progress_line(enabled=search_all and not (json or options.quiet)) as show_progress:
        page, total = options.read(
            lambda ops: _read_page(
                ops, selection.filter, after, limit, count=count, progress=show_progress if search_all else None
            )
        )
    if json:
        print_json(page_document(page, total))
        return
    _print_page(options, page, full=full)
    if total is not None:
        options.print_message(f"{total} match")


@task_app.command()
@with_global_options
def show(
    options: GlobalOptions,
    task_id: TaskIdArgument,
    *,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Show one task with its attempts, heartbeats and events.

    Example: horsies task show 9f3ac06b
    """
    detail = options.read(lambda ops: _read_detail(ops, task_id))
    if json:
        print_json(detail_document(detail))
    else:
        print_detail(detail, options.load_settings().tui.mask_keys, full=full)


@task_app.command()
@with_global_options
def why(options: GlobalOptions, task_id: TaskIdArgument, *, json: JsonOption = False) -> None:
    """Explain what a task waits for, or who runs it.

    Example: horsies task why 9f3ac06b
    """
    detail = options.read(lambda ops: _read_detail(ops, task_id))
    task, reasons = detail.task, detail.reasons()
    if json:
        print_json({"id": task.id, "status": task.status, "reasons": [reason._asdict() for reason in reasons]})
        return
    for reason in reasons:
        print_line(sanitize_text(reason.text))
    if not reasons:
        print_line(sanitize_text(_not_waiting_text(detail)))


def _not_waiting_text(detail: TaskDetail) -> str:
    task, age = detail.task, age_text(detail)
    if task.status != TaskStatus.FAILED:
        return f"it is not waiting: {task.status}, {age}"
    code = task.error_code or "no error code"
    return f"it is not waiting: FAILED with {code}, {age}; see horsies task show {short_form(task.id)}"


@task_app.command()
@with_global_options
def send(
    options: GlobalOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the task, as in @app.task(NAME).")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Positional arguments: JSON, anything else is text.")
    ] = None,
    *,
    args: Annotated[str, typer.Option(metavar="JSON", help="Positional arguments as a JSON array.")] = "[]",
    kwarg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Keyword argument: JSON, anything else is text; may be repeated."),
    ] = None,
    kwargs: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments as a JSON object.")] = "{}",
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send to this queue [default: the task's queue]")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=1, max=100, metavar="N", help="Priority, 1 (first) to 100 [default: the task's priority]"),
    ] = None,
    delay: Annotated[timedelta | None, duration_option("Start no earlier than this, such as 5m [default: now]")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key: a repeated send is stored once.")
    ] = None,
    locator: AppOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the result and print it; exits 1 if the task fails.")
    ] = False,
    timeout: Annotated[
        timedelta, duration_option("Time limit of --wait; after it, exit 1 (the task continues).")
    ] = DEFAULT_WAIT,
    json: JsonOption = False,
) -> int:
    """Send a task by name.

    If an app is given or configured, it validates the arguments.

    Example: horsies task send greet Ada --kwarg lang=de --wait
    """
    # Imported here: it loads the client library, which no other subcommand needs.
    from horsies_ops.cli import task_send

    positional, keywords = task_send.parse_arguments(values or [], args, kwarg or [], kwargs)
    with task_send.task_to_send(options, name, locator=locator, queue=queue) as task:
        handle = task_send.send_or_raise(
            task, positional, keywords, priority=priority, delay=delay, idempotency_key=key
        )
        result = task_send.wait_for_document(options, task, handle, timeout) if wait else None
    if json:
        print_json({"id": handle.task_id, "result": result})
    elif result is None:
        print_line(handle.task_id)
    else:
        print_result(result)
    return ExitCode.FAILED if result is not None and "err" in result else ExitCode.DONE


@task_app.command()
@with_global_options
def follow(
    options: GlobalOptions,
    task_id: TaskIdArgument,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> int:
    """Show each change of a task until it has finished, then its result.

    Exit 1 if it does not complete.

    Example: horsies task follow 9f3ac06b
    """
    last = options.read(lambda ops: _follow(ops, task_id, json=json))
    if not json and last.task.result is not None:
        print_result(last.task.result)
    return ExitCode.DONE if last.task.status == TaskStatus.COMPLETED else ExitCode.FAILED


add_actions(task_app)


# Listing and showing tasks


async def _read_page(
    ops: Ops,
    task_filter: TaskFilter,
    after: UUID | None,
    limit: int,
    *,
    count: bool,
    progress: Callable[[str], None] | None,
) -> tuple[TaskPage, Count | None]:
    """Read one page and, with `count`, the number of matches. With `progress`, search until the page is full."""
    load_page = partial(ops.list_tasks, task_filter)
    if progress is None:
        page = await load_page(after=after, limit=limit)
    else:
        page = await search_pages(load_page, after=after, limit=limit, progress=progress)
    return page, await ops.count_tasks(task_filter) if count else None


async def search_pages(
    load_page: Callable[..., Awaitable[TaskPage]], *, after: UUID | None, limit: int, progress: Callable[[str], None]
) -> TaskPage:
    """Read pages until `limit` tasks are found or all tasks were searched."""
    found: tuple[TaskSummary, ...] = ()
    while True:
        page = await load_page(after=after, limit=limit - len(found))
        found += page.tasks
        if page.searched_to is None:
            return replace(page, tasks=found)
        progress(f"searched back to {format_instant(page.searched_to)}, found {len(found):,}")
        after = page.next


async def _follow(ops: Ops, id_text: str, *, json: bool) -> TaskDetail:
    """Print the task whenever it has changed; return it once it has finished."""
    full_id, shown = str(await resolve_task_id(ops, id_text)), ""
    while True:
        detail = await _read_detail(ops, full_id)
        line = _change_line(detail)
        if line != shown:
            # A task may have finished long before.
            at = detail.task.finished_at or detail.task.read_at
            print_line(json_line(detail_document(detail)) if json else f"{format_instant(at)}  {line}")
            sys.stdout.flush()  # a reader of a pipe must not wait for the next change
        if TaskStatus(detail.task.status).is_terminal:
            return detail
        shown = line
        await asyncio.sleep(FOLLOW_INTERVAL_S)


def _change_line(detail: TaskDetail) -> str:
    """Return the state of a task in one line without ages, so that it differs only if the task has changed."""
    task = detail.task
    parts = [task.status, task.error_code or "", f"attempt {task.attempt_count + (task.status == TaskStatus.RUNNING)}"]
    if task.status in {TaskStatus.CLAIMED, TaskStatus.RUNNING} and task.worker_id:
        parts.append(f"worker {short_form(task.worker_id)} {task.worker_hostname or ''}")
    if task.next_retry_at is not None:
        parts.append(f"retry at {format_instant(task.next_retry_at)}")
    elif detail.wait_reasons and detail.wait_reasons[0].cause not in {WaitCause.POSITION, WaitCause.DELAYED}:
        parts.append(detail.wait_reasons[0].text)
    if detail.events:
        parts.append(f"event {detail.events[0].kind}")
    return sanitize_text("  ".join(part for part in parts if part), limit=MAX_VALUE_LENGTH)


def _print_page(options: GlobalOptions, page: TaskPage, *, full: bool) -> None:
    if page.tasks:
        print_tasks(page, full=full)
    if page.searched_to is not None:
        options.print_message(
            f"{'' if page.tasks else 'no tasks yet: '}searched back to {format_instant(page.searched_to)}"
        )
        options.print_message(f"to search further back: --after {page.next}, or --all")
    elif page.next is not None:
        options.print_message(f"more: --after {page.next}")
    elif not page.tasks:
        options.print_message("no tasks")


async def _read_detail(ops: Ops, id_text: str) -> TaskDetail:
    task_id = await resolve_task_id(ops, id_text)
    if (detail := await ops.task(task_id)) is None:
        raise NotFound(f"no task {task_id}", hint="horsies task list --full shows full ids")
    return detail


# Tasks as text and JSON

FULL_ID_COLUMNS = 120
"""Terminal width from which lists show full ids."""


def page_document(page: TaskPage, total: Count | None = None) -> dict[str, Any]:
    """Return the document of `task list --json`."""
    document = {
        "tasks": [row_document(task) for task in page.tasks],
        "next": page.next,
        "searched_to": page.searched_to,
        "total": None,
    }
    if total is None:
        return document
    return document | {"total": total.number, "total_is_exact": not (total.is_capped or total.is_estimate)}


def print_tasks(page: TaskPage, *, full: bool) -> None:
    """Print tasks as a table that fits the terminal, or uncut if `full`."""
    width = shutil.get_terminal_size(fallback=(FULL_ID_COLUMNS, 24)).columns
    has_full_ids = full or width >= FULL_ID_COLUMNS
    columns: tuple[TableColumn[TaskSummary], ...] = (
        TableColumn("id", lambda task: str(task.id) if has_full_ids else short_form(task.id)),
        TableColumn("status", lambda task: task.status),
        TableColumn("name", lambda task: task.name, can_shrink=True),
        TableColumn("queue", lambda task: task.queue, can_shrink=True),
        TableColumn("age", lambda task: format_age(task.age)),
        TableColumn("tries", lambda task: str(task.attempt_count), right=True),
        TableColumn("note", lambda task: task.error_code or due_text(task) or "", can_shrink=True),
    )
    print_rows(page.tasks, columns, width=None if full else width)
