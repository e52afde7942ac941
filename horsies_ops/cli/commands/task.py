"""`horsies task`: list, show and send tasks. The actions on tasks are in `task_actions`."""

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

app = group("task")

DEFAULT_WAIT: Any = "30s"  # a text, because typer parses defaults too and shows them in the help
PageLoader = Callable[[UUID | None, int], Awaitable[TaskPage]]
"""Reads the page after a task id, with at most this many tasks."""


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
    full: Annotated[bool, typer.Option("--full", help="Show full ids and names.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; `total` is null without --count.")
    ] = False,
) -> None:
    """List tasks, newest first."""
    settings = options.load_settings().app
    with progress_line(enabled=search_all and not (json or options.quiet)) as show_progress:
        page, total = asyncio.run(
            _list(
                settings,
                selection.filter,
                after=after,
                limit=limit,
                with_count=count,
                show_progress=show_progress if search_all else None,
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
    full: Annotated[bool, typer.Option("--full", help="Do not cut long values.")] = False,
    json: JsonOption = False,
) -> None:
    """Show a task with its attempts and events. Exit 5 if it does not exist."""
    detail = asyncio.run(_detail(options.load_settings().app, task_id))
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
    positional, keywords = json_array(args), json_object(kwargs)
    send_options = SendOptions(priority=priority, delay=delay, idempotency_key=key)
    with task_to_send(options, name, locator=locator, queue=queue) as task:
        handle = send_or_raise(task, send_options, positional, keywords)
        if wait:
            _print_waiting(options, task, handle)
        result = wait_for_document(task, handle, timeout) if wait else None
    if json:
        print_json({"id": handle.task_id, "result": result})
    else:
        print_line(handle.task_id if result is None else sanitize_text(canonical_json(result)))
    return ExitCode.FAILED if result is not None and "err" in result else ExitCode.DONE


add_actions(app)


# Listing and showing tasks


async def _list(
    settings: AppConfig,
    task_filter: TaskFilter,
    *,
    after: UUID | None,
    limit: int,
    with_count: bool,
    show_progress: Callable[[str], None] | None,
) -> tuple[TaskPage, Count | None]:
    """Read one page and, if wanted, the count. With `show_progress`, search until the page is full."""
    async with open_ops(settings, read_only=True) as ops:

        async def load_page(after: UUID | None, limit: int) -> TaskPage:
            return await ops.list_tasks(task_filter, after=after, limit=limit)

        if show_progress is None:
            page = await load_page(after, limit)
        else:
            page = await search_pages(load_page, after=after, limit=limit, show_progress=show_progress)
        return page, await ops.count_tasks(task_filter) if with_count else None


async def search_pages(
    load_page: PageLoader, *, after: UUID | None, limit: int, show_progress: Callable[[str], None]
) -> TaskPage:
    """Read pages until `limit` tasks are found or all tasks were searched."""
    found: tuple[TaskSummary, ...] = ()
    while True:
        page = await load_page(after, limit - len(found))
        found += page.tasks
        if page.searched_to is None:
            return replace(page, tasks=found)
        show_progress(f"searched back to {format_instant(page.searched_to)}, found {len(found):,}")
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


async def _detail(settings: AppConfig, id_text: str) -> TaskDetail:
    async with open_ops(settings, read_only=True) as ops:
        task_id = await resolve_task_id(ops, id_text)
        detail = await ops.task(task_id)
    if detail is None:
        raise NotFound(f"no task {task_id}", hint="horsies task list --full shows full ids")
    return detail


# Sending a task


@contextmanager
def task_to_send(
    options: GlobalOptions, name: str, *, locator: str | None, queue: str | None
) -> Generator[TaskFunction[..., Any]]:
    """Yield the app's task of this name or, without an app, a task that is not validated.

    Raises HRS-300 for an unknown task and HRS-200 or HRS-103 for an unknown queue.
    """
    has_app = locator is not None or load_and_export_settings(options).locator is not None
    if not has_app:
        options.print_message("no app given or configured: name, arguments and queue are stored without validation")
    with redirect_stdout(sys.stderr):  # keep what user modules print on import out of our data
        app = load_app(options, locator) if has_app else Horsies()  # without tasks; it has the settings to send with
    try:
        if not has_app:
            queue_name = app.validate_queue_name(None) if queue is None else queue
            yield TaskFunction(app, unregistered_definition(name, queue_name))
        elif queue is None:
            yield app.tasks.find(name)
        else:
            definition = app.tasks.find(name).definition
            yield TaskFunction(app, replace(definition, queue_name=app.validate_queue_name(queue)))
    finally:
        app.close()


def send_or_raise(
    task: TaskFunction[..., Any], options: SendOptions, args: list[Any], kwargs: dict[str, Any]
) -> TaskHandle[Any]:
    """Send the task; raises the error of a failed send."""
    sent = task.send_with(options, tuple(args), kwargs)
    if not isinstance(sent, Err):
        return sent.value
    error = sent.error
    if isinstance(error.exception, HorsiesError):
        raise error.exception  # it has an exit code and hint of its own
    code = cast("BrokerErrorCode", error.code)  # the code of the send error is shown in its place
    raise HorsiesError(error.message, code=code, hint=_parameter_hint(task, kwargs))


def _parameter_hint(task: TaskFunction[..., Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the task's parameters if an unknown one was given."""
    signature = task.definition.codec.signature
    if signature.var_keyword is not None or kwargs.keys() <= signature.keywords:
        return None
    return f"its parameters: {', '.join(sorted(signature.keywords)) or 'none'}"


def _print_waiting(options: GlobalOptions, task: TaskFunction[..., Any], handle: TaskHandle[Any]) -> None:
    options.print_message(f"sent {handle.task_id}, waiting for its result")
    if not options.quiet and not asyncio.run(has_live_worker(task.app.config)):
        print_warning("no live worker on this database", hint="start one: horsies worker")


async def has_live_worker(config: AppConfig) -> bool:
    threshold = timedelta(milliseconds=config.recovery.worker_stale_threshold_ms)
    async with open_ops(config.broker, read_only=True) as ops:
        return await ops.count_live_workers(threshold=threshold) > 0


def wait_for_document(task: TaskFunction[..., Any], handle: TaskHandle[Any], timeout: timedelta) -> dict[str, Any]:
    """Wait for the result and return `{"ok": …}` or `{"err": …}`; a timeout is an err with WAIT_TIMEOUT."""
    result = handle.get(timeout_ms=int(timeout / timedelta(milliseconds=1)))
    return cast("dict[str, Any]", parse_json(encode_result(result, task.definition.codec.result_codec).document))


_OPTION_FOR_TYPE: Mapping[type[object], str] = {list: "--args", dict: "--kwargs"}


def json_array(text: str) -> list[Any]:
    return _parse_json_option(list, "--args", "an array", text)


def json_object(text: str) -> dict[str, Any]:
    return _parse_json_option(dict, "--kwargs", "an object", text)


def _parse_json_option(kind: type[Any], option: str, kind_text: str, text: str) -> Any:
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise _json_error(f"{option} is not valid JSON ({position}): {error.msg}", option) from None
    except ValueError as error:
        raise _json_error(f"{option} is not valid JSON: {error}", option) from None
    if not isinstance(value, kind):
        # An object given to --args belongs to --kwargs, and the other way round.
        other_option = _OPTION_FOR_TYPE.get(type(value))
        error = _json_error(f"{option} must be {kind_text} in JSON", other_option or option)
        if other_option:
            error.help_text = f"did you mean {other_option}? {error.help_text}"
        raise error
    return value


def _json_error(message: str, option: str) -> UsageError:
    example = """'[1, "two"]'""" if option == "--args" else """'{"name": "value"}'"""
    return UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=f"for example {option} {example}")
