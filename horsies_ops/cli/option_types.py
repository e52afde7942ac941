"""Kinds of options that commands share: how they are read, and how they are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.model.task import SHORT_FORM_DIGITS, TaskStatus, parse_id
from horsies_ops.reads.filters import is_short_form, parse_duration

if TYPE_CHECKING:
    from datetime import timedelta


# Durations as values of options.


def duration(text: str) -> timedelta:
    """What `text` says; a `BadParameter`, which is shown with the name of the option, where it makes no sense."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


_WITHOUT_DASHES = re.compile("[0-9a-fA-F]{32}")


def whole_id(text: str) -> UUID:
    """An id with its dashes or without; `ValueError` where it is none."""
    return UUID(text) if _WITHOUT_DASHES.fullmatch(text) else UUID(parse_id(text))


def identity(text: str) -> UUID:
    """A whole id, and nothing else will do."""
    try:
        return whole_id(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --full and --json show whole ids") from None


def identity_or_short_form(text: str) -> str:
    """A whole id, or the eight digits that lists show of it; text in both cases."""
    if is_short_form(text):
        return text
    try:
        return str(whole_id(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; its last {SHORT_FORM_DIGITS} digits would do") from None


Run = Annotated[
    str,
    typer.Argument(
        parser=identity_or_short_form, metavar="ID", help="The whole id of a run, or its last eight digits."
    ),
]


def values(text: str) -> list[str]:
    """One value or several, with commas between."""
    return [each.strip() for each in text.split(",") if each.strip()]


def statuses(text: str) -> list[TaskStatus]:
    """The same for states, in upper or lower case."""
    try:
        return [TaskStatus(name.upper()) for name in values(text)]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not among {', '.join(TaskStatus).lower()}") from None


def several(describes: str, *, parser: Callable[[str], list[Any]] = values) -> Any:
    """An option that may be given more than once, each time with several values; `flat` makes one tuple of them."""
    return typer.Option(parser=parser, metavar="A,B", help=describes)


def flat(given: Iterable[Iterable[Any]] | None) -> tuple[Any, ...]:
    return tuple(each for some in given or () for each in some)


def one_id(describes: str) -> Any:
    return typer.Option(parser=identity, metavar="ID", help=describes)


def id_or_short_form(describes: str) -> Any:
    return typer.Option(parser=identity_or_short_form, metavar="ID", help=describes)


def time(describes: str) -> Any:
    return typer.Option(parser=duration, metavar="TIME", help=describes)
