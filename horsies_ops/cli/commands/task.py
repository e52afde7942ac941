"""`horsies task`: look at tasks and send them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, cast
from uuid import UUID

import typer

from horsies import Horsies
from horsies.client.payload import SendOptions
from horsies.client.results import TaskHandle
from horsies.client.task import TaskFunction
from horsies.codec.canonical_json import canonical_json, parse_json
from horsies.codec.results import encode_result
from horsies.errors import BrokerErrorCode, ErrorCode, ExitCode, HorsiesError, NotFound, UsageError
from horsies.model.result import Err
from horsies.model.settings import AppConfig
from horsies.model.text import sanitize_text
from horsies_ops.actions.send import unregistered_definition
from horsies_ops.cli.ids import resolve_task_id
from horsies_ops.cli.option_types import duration_option, full_id_option, parse_full_or_short_id
from horsies_ops.cli.options import (
    GlobalOptions,
    JsonOption,
    group,
    load_and_export_settings,
    load_app,
    with_global_options,
)
from horsies_ops.cli.output import format_instant, print_json, print_line, print_warning, progress_line
from horsies_ops.cli.task_actions import FilterOptions, add_actions, with_filter_options
from horsies_ops.cli.task_views import detail_document, page_document, print_detail, print_page
from horsies_ops.ops import open_ops
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import Count
from horsies_ops.reads.tasks import TaskDetail, TaskPage, TaskSummary

# Looking for tasks page by page until there are enough of them.

PageLoader = Callable[[UUID | None, int], Awaitable[TaskPage]]
"""Gives the page after a task, of so many at most."""


async def search(listing: PageLoader, *, after: UUID | None, limit: int, say: Callable[[str], None]) -> TaskPage:
    """A page that is full unless the tasks end; `say` hears how far back the search has come."""
    found: tuple[TaskSummary, ...] = ()
    while True:
        page = await listing(after, limit - len(found))
        found += page.tasks
        if page.searched_to is None:
            return replace(page, tasks=found)
        say(f"searched back to {format_instant(page.searched_to)}, found {len(found):,}")
        after = page.next


# Sending a task by its name: checked by the app that defines it, or stored as given where no app is at hand.


@contextmanager
def task_to_send(
    options: GlobalOptions, name: str, *, locator: str | None, queue: str | None
) -> Generator[TaskFunction[..., Any]]:
    """Yield the task of that name, bound for `queue` where one is given; HRS-300, 200 or 103 where it cannot be."""
    is_app_named = locator is not None or load_and_export_settings(options).locator is not None
    if not is_app_named:
        options.print_message("no app is named or configured: name, arguments and queue are stored unchecked")
    with redirect_stdout(sys.stderr):  # what a module prints while it is imported is not our data
        app = load_app(options, locator) if is_app_named else Horsies()
    try:
        yield _registered(app, name, queue) if is_app_named else _unregistered(app, name, queue)
    finally:
        app.close()


def send_task(
    task: TaskFunction[..., Any], options: SendOptions, args: list[Any], kwargs: dict[str, Any]
) -> TaskHandle[Any]:
    """Send the task, or raise why it could not be."""
    sent = task.send_with(options, tuple(args), kwargs)
    if not isinstance(sent, Err):
        return sent.value
    error = sent.error
    if isinstance(error.exception, HorsiesError):
        raise error.exception  # what the database said has its own exit code and hint
    code = cast("BrokerErrorCode", error.code)  # a code of the send, shown as such
    raise HorsiesError(error.message, code=code, hint=_known_names(task, kwargs))


def _known_names(task: TaskFunction[..., Any], kwargs: Mapping[str, Any]) -> str | None:
    """What may be named, where something else was."""
    shape = task.definition.codec.signature
    if shape.var_keyword is not None or kwargs.keys() <= shape.keywords:
        return None
    return f"its parameters: {', '.join(sorted(shape.keywords)) or 'none'}"


def result_document(task: TaskFunction[..., Any], handle: TaskHandle[Any], timeout: timedelta) -> dict[str, Any]:
    """Wait for the result, `{"ok": …}` or `{"err": …}`; WAIT_TIMEOUT is an err as well, and the task goes on."""
    result = handle.get(timeout_ms=int(timeout / timedelta(milliseconds=1)))
    return cast("dict[str, Any]", parse_json(encode_result(result, task.definition.codec.result_codec).document))


async def has_live_worker(config: AppConfig) -> bool:
    """Whether anyone is there who could run the task."""
    threshold = timedelta(milliseconds=config.recovery.worker_stale_threshold_ms)
    async with open_ops(config.broker, read_only=True) as ops:
        return await ops.count_live_workers(threshold=threshold) > 0


def _registered(app: Horsies, name: str, queue: str | None) -> TaskFunction[..., Any]:
    task = app.tasks.find(name)
    if queue is None:
        return task
    return TaskFunction(app, replace(task.definition, queue_name=app.validate_queue_name(queue)))


def _unregistered(app: Horsies, name: str, queue: str | None) -> TaskFunction[..., Any]:
    return TaskFunction(app, unregistered_definition(name, app.validate_queue_name(None) if queue is None else queue))


def json_array(text: str) -> list[Any]:
    return _of_type(list, "--args", "an array", text)


def json_object(text: str) -> dict[str, Any]:
    return _of_type(dict, "--kwargs", "an object", text)


def _of_type(kind: type[Any], option: str, described: str, text: str) -> Any:
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise _bad_json(f"{option} is no JSON at {place}: {error.msg}", option) from None
    except ValueError as error:
        raise _bad_json(f"{option} is no JSON: {error}", option) from None
    if not isinstance(value, kind):
        meant = _OPTIONS.get(type(value))
        error = _bad_json(f"{option} must be {described} in JSON", meant or option)
        if meant:
            error.help_text = f"did you mean {meant}? {error.help_text}"
        raise error
    return value


_OPTIONS: Mapping[type[object], str] = {list: "--args", dict: "--kwargs"}


def _bad_json(message: str, option: str) -> UsageError:
    example = """'[1, "two"]'""" if option == "--args" else """'{"name": "value"}'"""
    return UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=f"for example {option} {example}")


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
    after: Annotated[UUID | None, full_id_option("Go on after this task: `next` of the page before.")] = None,
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
    settings = options.load_settings().app
    with progress_line(wanted=to_the_end and not (json or options.quiet)) as say:
        told = say if to_the_end else None
        page, total = asyncio.run(_list(settings, which.filter, after=after, limit=limit, is_counted=count, say=told))
    if json:
        print_json(page_document(page, total))
        return
    _show_page(options, page, full=full)
    if total is not None:
        options.print_message(f"{total} match")


@app.command()
@with_global_options
def show(
    options: GlobalOptions,
    task_id: Annotated[
        str,
        typer.Argument(
            parser=parse_full_or_short_id, metavar="ID", help="A whole id, or the eight digits that a list shows."
        ),
    ],
    *,
    full: Annotated[bool, typer.Option("--full", help="Cut nothing, however long.")] = False,
    json: JsonOption = False,
) -> None:
    """Show everything about one task. Exit 5 when there is none."""
    detail = asyncio.run(_detail(options.load_settings().app, task_id))
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
    delay: Annotated[timedelta | None, duration_option("Not before this time has passed.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Idempotency key: sent twice, stored once.")] = None,
    locator: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="The app that defines the task and checks the arguments.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result. Exit 1 when it is an error.")] = False,
    timeout: Annotated[
        timedelta, duration_option("How long --wait waits; then exit 1, and the task goes on.")
    ] = DEFAULT_WAIT,
    json: JsonOption = False,
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
        print_line(handle.task_id if result is None else sanitize_text(canonical_json(result)))
    return ExitCode.FAILED if result is not None and "err" in result else ExitCode.DONE


add_actions(app)


def _say_waiting(options: GlobalOptions, task: TaskFunction[..., Any], handle: TaskHandle[Any]) -> None:
    options.print_message(f"sent {handle.task_id}, waiting for its result")
    if not options.quiet and not asyncio.run(has_live_worker(task.app.config)):
        print_warning("no live worker is on this database", hint="start one: horsies worker")


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
        whole = await resolve_task_id(ops, named)
        detail = await ops.task(whole)
    if detail is None:
        raise NotFound(f"there is no task {whole}", hint="horsies task list --full shows whole ids")
    return detail


def _show_page(options: GlobalOptions, page: TaskPage, *, full: bool) -> None:
    if page.tasks:
        print_page(page, full=full)
    if page.searched_to is not None:
        options.print_message(
            f"{'' if page.tasks else 'no tasks yet: '}searched back to {format_instant(page.searched_to)}"
        )
        options.print_message(f"further back: --after {page.next}, or --all to search to the end")
    elif page.next is not None:
        options.print_message(f"more: --after {page.next}")
    elif not page.tasks:
        options.print_message("no tasks")
