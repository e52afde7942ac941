"""Filters on the command line: by options, or in one line as in the screens."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from uuid import UUID

import typer

from horsies.errors import ErrorCode, UsageError
from horsies_ops.cli.option_types import flat, one_id, several, statuses, time
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.filter_language import FilterFault, parse_filter

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """The options that say which tasks are meant."""

    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="As in the screens: 'status:failed age<1h'.")
    ] = None
    status: Annotated[list[Any] | None, several("Tasks in one of these states.", parser=statuses)] = None
    queue: Annotated[list[Any] | None, several("Tasks of these queues.")] = None
    name: Annotated[list[Any] | None, several("Tasks of these names; * and ? stand for anything.")] = None
    error: Annotated[list[Any] | None, several("Tasks that ended with these codes; globs as well.")] = None
    worker: Annotated[UUID | None, one_id("Tasks that this worker holds or last held.")] = None
    workflow: Annotated[UUID | None, one_id("Tasks of this run of a workflow.")] = None
    flag: Annotated[str | None, typer.Option(metavar="NAME", help="Tasks with this flag set.")] = None
    older_than: Annotated[timedelta | None, time("Sent longer ago than this, as 5m or 2h.")] = None
    newer_than: Annotated[timedelta | None, time("Sent more recently than this.")] = None

    @property
    def filter(self) -> TaskFilter:
        """What the options say together, or what `--filter` says, which stands alone."""
        options = TaskFilter(
            statuses=flat(self.status),
            queues=flat(self.queue),
            names=flat(self.name),
            error_codes=flat(self.error),
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
