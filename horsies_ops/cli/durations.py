"""Durations as people write them: `5m`, `30s`, `2h`, `1d`, `250ms`, or plain seconds."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|)")


def duration(text: str) -> timedelta:
    """What `text` says; a `BadParameter`, which is shown with the name of the option, where it makes no sense."""
    written = _WRITTEN.fullmatch(text.strip().lower())
    if written is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 5m, 30s, 2h, 1d, 250ms or plain seconds")
    try:
        return float(written[1]) * _UNITS[written[2]]
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long a time") from None
