"""Filters on the command line: by options, or in one line as in the screens."""

from __future__ import annotations

from typing import Annotated

import typer

from horsies.errors import ErrorCode, UsageError
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.filter_language import FilterFault, parse_filter

FilterText = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help="As in the screens: 'status:failed age<1h'.")
]


def combined(options: TaskFilter, text: str) -> TaskFilter:
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
