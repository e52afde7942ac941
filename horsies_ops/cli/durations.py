"""Durations as values of options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from horsies_ops.reads.durations import parse_duration

if TYPE_CHECKING:
    from datetime import timedelta


def duration(text: str) -> timedelta:
    """What `text` says; a `BadParameter`, which is shown with the name of the option, where it makes no sense."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
