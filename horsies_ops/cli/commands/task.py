"""`horsies task`: look at tasks and send them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.client.sending import SendOptions
from horsies.codec.wire import canonical
from horsies.errors import ExitCode, NotFound
from horsies.model.text import safe
from horsies_ops.cli.ages import instant
from horsies_ops.cli.naming import task_named
from horsies_ops.cli.option_types import identity_or_short_form, one_id, time
from horsies_ops.cli.output import print_json, print_line, warn
from horsies_ops.cli.progress import progress_line
from horsies_ops.cli.session import GlobalOptions, Json, group, with_global_options
from horsies_ops.cli.task_actions import add_actions
from horsies_ops.cli.task_filters import FilterOptions, with_filter_options
from horsies_ops.cli.task_search import search
from horsies_ops.cli.task_sending import has_live_worker, json_array, json_object, result_document, task_to_send
from horsies_ops.cli.task_sending import send as send_task
from horsies_ops.cli.task_views import detail_document, page_document, print_detail, print_page
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.client.handle import TaskHandle
    from horsies.client.task_function import TaskFunction
    from horsies.model.settings import AppConfig
    from horsies_ops.reads.counts import Count
    from horsies_ops.reads.filter import TaskFilter
    from horsies_ops.reads.tasks import TaskDetail, TaskPage

app = group("task")

DEFAULT_WAIT: Any = "30s"
"""As it would be typed, for defaults are parsed too and shown in the help."""


@app.command("list")
@with_global_options
@with_filter_options
def list_(
    options: GlobalOptions,
    *,
    which: FilterOptions,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 50,
    after: Annotated[UUID | None, one_id("Go on after this task: `next` of the page before.")] = None,
    to_the_end: Annotated[
        bool, typer.Option("--all", help="Search until enough were found or the tasks end, however long that takes.")
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="Count what matches too, as far as it is quick.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Whole ids and names, however wide that is.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document instead of text; without --count, `total` is null.")
    ] = False,
) -> None:
    """List tasks, the newest first."""
    settings = options.settings().app
    with progress_line(wanted=to_the_end and not (json or options.quiet)) as say:
        told = say if to_the_end else None
        page, total = asyncio.run(_list(settings, which.filter, after=after, limit=limit, is_counted=count, say=told))
    if json:
        print_json(page_document(page, total))
        return
    _show_page(options, page, full=full)
    if total is not None:
        options.talk(f"{total} match")


@app.command()
@with_global_options
def show(
    options: GlobalOptions,
    task_id: Annotated[
        str,
        typer.Argument(
            parser=identity_or_short_form, metavar="ID", help="A whole id, or the eight digits that a list shows."
        ),
    ],
    *,
    full: Annotated[bool, typer.Option("--full", help="Cut nothing, however long.")] = False,
    json: Json = False,
) -> None:
    """Show everything about one task. Exit 5 when there is none."""
    detail = asyncio.run(_detail(options.settings().app, task_id))
    if json:
        print_json(detail_document(detail))
    else:
        print_detail(detail, full=full)


@app.command()
@with_global_options
def send(
    options: GlobalOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The task's name, as @app.task has it.")],
    *,
    args: Annotated[str, typer.Option(metavar="JSON", help="Positional arguments, an array.")] = "[]",
    kwargs: Annotated[str, typer.Option(metavar="JSON", help="Arguments by name, an object.")] = "{}",
    queue: Annotated[str | None, typer.Option(metavar="QUEUE", help="Another queue than the task's own.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="1 is claimed first.")] = None,
    delay: Annotated[timedelta | None, time("Not before this time has passed.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Idempotency key: sent twice, stored once.")] = None,
    locator: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="The app that defines the task and checks the arguments.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result. Exit 1 when it is an error.")] = False,
    timeout: Annotated[timedelta, time("How long --wait waits; then exit 1, and the task goes on.")] = DEFAULT_WAIT,
    json: Json = False,
) -> int:
    """Send a task; where an app is named or configured, it checks the arguments."""
    arguments = json_array(args), json_object(kwargs)
    given = SendOptions(priority=priority, delay=delay, idempotency_key=key)
    with task_to_send(options, name, locator=locator, queue=queue) as task:
        handle = send_task(task, given, *arguments)
        if wait:
            _say_waiting(options, task, handle)
        result = result_document(task, handle, timeout) if wait else None
    if json:
        print_json({"id": handle.task_id, "result": result})
    else:
        print_line(handle.task_id if result is None else safe(canonical(result)))
    return ExitCode.FAILED if result is not None and "err" in result else ExitCode.DONE


add_actions(app)


def _say_waiting(options: GlobalOptions, task: TaskFunction[..., Any], handle: TaskHandle[Any]) -> None:
    options.talk(f"sent {handle.task_id}, waiting for its result")
    if not options.quiet and not asyncio.run(has_live_worker(task.host.config)):
        warn("no live worker is on this database", hint="start one: horsies worker")


async def _list(
    settings: AppConfig,
    wanted: TaskFilter,
    *,
    after: UUID | None,
    limit: int,
    is_counted: bool,
    say: Callable[[str], None] | None,
) -> tuple[TaskPage, Count | None]:
    """A page, and how many match where that is asked for; with somebody to tell, it is searched for to the end."""
    async with open_ops(settings, read_only=True) as ops:

        async def listing(after: UUID | None, limit: int) -> TaskPage:
            return await ops.list_tasks(wanted, after=after, limit=limit)

        page = await (listing(after, limit) if say is None else search(listing, after=after, limit=limit, say=say))
        return page, await ops.count_tasks(wanted) if is_counted else None


async def _detail(settings: AppConfig, named: str) -> TaskDetail:
    async with open_ops(settings, read_only=True) as ops:
        whole = await task_named(ops, named)
        detail = await ops.task(whole)
    if detail is None:
        raise NotFound(f"there is no task {whole}", hint="horsies task list --full shows whole ids")
    return detail


def _show_page(options: GlobalOptions, page: TaskPage, *, full: bool) -> None:
    if page.tasks:
        print_page(page, full=full)
    if page.searched_to is not None:
        options.talk(f"{'' if page.tasks else 'no tasks yet: '}searched back to {instant(page.searched_to)}")
        options.talk(f"further back: --after {page.next}, or --all to search to the end")
    elif page.next is not None:
        options.talk(f"more: --after {page.next}")
    elif not page.tasks:
        options.talk("no tasks")
