"""Kinds of options that commands share: how they are read, and how they are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from horsies.model.task import SHORT_FORM_DIGITS, TaskStatus, parse_id
from horsies_ops.reads.filters import is_short_id, parse_duration

# Durations as values of options.


def parse_duration_option(text: str) -> timedelta:
    """What `text` says; a `BadParameter`, which is shown with the name of the option, where it makes no sense."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


_WITHOUT_DASHES = re.compile("[0-9a-fA-F]{32}")


def to_uuid(text: str) -> UUID:
    """An id with its dashes or without; `ValueError` where it is none."""
    return UUID(text) if _WITHOUT_DASHES.fullmatch(text) else UUID(parse_id(text))


def parse_full_id(text: str) -> UUID:
    """A whole id, and nothing else will do."""
    try:
        return to_uuid(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --full and --json show whole ids") from None


def parse_full_or_short_id(text: str) -> str:
    """A whole id, or the eight digits that lists show of it; text in both cases."""
    if is_short_id(text):
        return text
    try:
        return str(to_uuid(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; its last {SHORT_FORM_DIGITS} digits would do") from None


RunIdArgument = Annotated[
    str,
    typer.Argument(
        parser=parse_full_or_short_id, metavar="ID", help="The whole id of a run, or its last eight digits."
    ),
]


def split_values(text: str) -> list[str]:
    """One value or several, with commas between."""
    return [each.strip() for each in text.split(",") if each.strip()]


def parse_task_statuses(text: str) -> list[TaskStatus]:
    """The same for states, in upper or lower case."""
    try:
        return [TaskStatus(name.upper()) for name in split_values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(TaskStatus).lower()}") from None


def list_option(describes: str, *, parser: Callable[[str], list[Any]] = split_values) -> Any:
    """An option that may be given more than once, each time with several values; `flat` makes one tuple of them."""
    return typer.Option(parser=parser, metavar="A,B", help=describes)


def flatten(given: Iterable[Iterable[Any]] | None) -> tuple[Any, ...]:
    return tuple(each for some in given or () for each in some)


def full_id_option(describes: str) -> Any:
    return typer.Option(parser=parse_full_id, metavar="ID", help=describes)


def id_option(describes: str) -> Any:
    return typer.Option(parser=parse_full_or_short_id, metavar="ID", help=describes)


def duration_option(describes: str) -> Any:
    return typer.Option(parser=parse_duration_option, metavar="TIME", help=describes)
