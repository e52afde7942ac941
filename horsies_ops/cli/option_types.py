"""Options and option types that commands share: --reason and --as, durations, ids, statuses and lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from horsies.model.task import SHORT_FORM_DIGITS, TaskStatus, parse_id
from horsies_ops.reads.filters import is_short_id, parse_duration

# Options with the same meaning in several commands

FullOption = Annotated[bool, typer.Option("--full", help="Show long values in full.")]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Reason recorded in the audit log.")]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Name recorded in the audit log [default: $HORSIES_ACTOR, else user@host]"
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change without changing it.")]
ExitCodeOption = Annotated[
    bool, typer.Option("--exit-code", help="With --dry-run: exit with 3 if there is work to do.")
]
KillOption = Annotated[
    bool, typer.Option("--kill", help="Also kill the processes of running tasks; asks for confirmation.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

_WITHOUT_DASHES = re.compile("[0-9a-fA-F]{32}")


def parse_duration_option(text: str) -> timedelta:
    """Parse a duration; typer shows a BadParameter together with the option's name."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def to_uuid(text: str) -> UUID:
    """Parse an id with or without dashes; raises ValueError."""
    return UUID(text) if _WITHOUT_DASHES.fullmatch(text) else UUID(parse_id(text))


def parse_full_id(text: str) -> UUID:
    """Parse a full id; short ids are rejected."""
    try:
        return to_uuid(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --full and --json show full ids") from None


def parse_full_or_short_id(text: str) -> str:
    """Validate a full or short id and return it as text."""
    if is_short_id(text):
        return text
    try:
        return str(to_uuid(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; the last {SHORT_FORM_DIGITS} digits are enough") from None


RunIdArgument = Annotated[
    str,
    typer.Argument(parser=parse_full_or_short_id, metavar="ID", help="Id of the run, or its last eight digits."),
]


def split_values(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [value.strip() for value in text.split(",") if value.strip()]


def parse_task_statuses(text: str) -> list[TaskStatus]:
    """Parse a comma-separated list of statuses, in upper or lower case."""
    try:
        return [TaskStatus(name.upper()) for name in split_values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(TaskStatus).lower()}") from None


def list_option(help_text: str, *, parser: Callable[[str], list[Any]] = split_values) -> Any:
    """Declare a repeatable option whose values are comma-separated lists; `flatten` joins them."""
    return typer.Option(parser=parser, metavar="A,B", help=help_text)


def flatten(lists: Iterable[Iterable[Any]] | None) -> tuple[Any, ...]:
    return tuple(value for values in lists or () for value in values)


def full_id_option(help_text: str) -> Any:
    return typer.Option(parser=parse_full_id, metavar="ID", help=help_text)


def id_option(help_text: str) -> Any:
    return typer.Option(parser=parse_full_or_short_id, metavar="ID", help=help_text)


def duration_option(help_text: str) -> Any:
    return typer.Option(parser=parse_duration_option, metavar="TIME", help=help_text)
