"""Durations as people write them: `5m`, `30s`, `2h`, `1d`, `250ms`, or plain seconds."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|)")


def parse_duration(text: str) -> timedelta:
    """What `text` says; a `ValueError` that says what to write where it makes no sense."""
    written = _WRITTEN.fullmatch(text.strip().lower())
    if written is None:
        raise ValueError(f"{text!r} is no duration; write 5m, 30s, 2h, 1d, 250ms or plain seconds")
    try:
        return float(written[1]) * _UNITS[written[2]]
    except OverflowError:
        raise ValueError(f"{text!r} is too long a time") from None


def duration_text(duration: timedelta) -> str:
    """The duration in the largest unit of which it is a whole number; to the millisecond."""
    for unit in ("d", "h", "m", "s"):
        if duration % _UNITS[unit] == timedelta(0):
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration // _UNITS['ms']}ms"
