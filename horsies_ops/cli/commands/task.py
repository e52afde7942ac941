"""`horsies task`: list, show and send tasks. The commands of actions on tasks are in `task_actions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import ExitCode, NotFound
from horsies.model.text import sanitize_text
from horsies_ops.cli.ids import resolve_task_id
from horsies_ops.cli.option_types import FullOption, duration_option, full_id_option, parse_full_or_short_id
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import format_instant, print_json, print_line, progress_line
from horsies_ops.cli.task_actions import FilterOptions, add_actions, with_filter_options
from horsies_ops.cli.task_views import detail_document, page_document, print_detail, print_page

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.search import Count
    from horsies_ops.reads.tasks import TaskDetail, TaskPage, TaskSummary

app = group("task")

DEFAULT_WAIT: Any = "30s"  # a string: typer parses defaults like arguments, and shows them in the help


@app.command("list")
@with_global_options
@with_filter_options
def list_(
    options: GlobalOptions,
    *,
    selection: FilterOptions,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="List at most N tasks.")] = 50,
    after: Annotated[UUID | None, full_id_option("Continue after this task: `next` of the previous page.")] = None,
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
    """List tasks, newest first."""
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


@app.command()
@with_global_options
def show(
    options: GlobalOptions,
    task_id: Annotated[
        str,
        typer.Argument(
            parser=parse_full_or_short_id, metavar="ID", help="Full id of the task, or its last eight digits."
        ),
    ],
    *,
    full: FullOption = False,
    json: JsonOption = False,
) -> None:
    """Show a task with its attempts and events. Exit 5 if it does not exist."""
    detail = options.read(lambda ops: _read_detail(ops, task_id))
    if json:
        print_json(detail_document(detail))
    else:
        print_detail(detail, full=full)


@app.command()
@with_global_options
def send(
    options: GlobalOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the task, as in @app.task(NAME).")],
    *,
    args: Annotated[str, typer.Option(metavar="JSON", help="Positional arguments as a JSON array.")] = "[]",
    kwargs: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments as a JSON object.")] = "{}",
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send to this queue [default: the task's queue]")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=100, metavar="N", help="1 to 100; 1 is claimed first.")
    ] = None,
    delay: Annotated[timedelta | None, duration_option("Start this long from now or later, such as 5m.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key; a repeated send is stored once.")
    ] = None,
    locator: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="App that defines the task; validates the arguments.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result. Exit 1 if it is an error.")] = False,
    timeout: Annotated[
        timedelta, duration_option("Time limit of --wait; after it, exit 1 (the task continues).")
    ] = DEFAULT_WAIT,
    json: JsonOption = False,
) -> int:
    """Send a task; if an app is given or configured, it validates the arguments."""
    # Imported here: it loads the client library, which no other subcommand needs.
    from horsies.codec.canonical_json import canonical_json
    from horsies_ops.cli import task_send

    positional, keywords = task_send.json_array(args), task_send.json_object(kwargs)
    with task_send.task_to_send(options, name, locator=locator, queue=queue) as task:
        handle = task_send.send_or_raise(
            task, positional, keywords, priority=priority, delay=delay, idempotency_key=key
        )
        result = task_send.wait_for_document(options, task, handle, timeout) if wait else None
    if json:
        print_json({"id": handle.task_id, "result": result})
    else:
        print_line(handle.task_id if result is None else sanitize_text(canonical_json(result)))
    return ExitCode.FAILED if result is not None and "err" in result else ExitCode.DONE


add_actions(app)


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


def _print_page(options: GlobalOptions, page: TaskPage, *, full: bool) -> None:
    if page.tasks:
        print_page(page, full=full)
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
