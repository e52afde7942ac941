"""Formatting of values for the screens: sanitized and truncated text, ages, counts, times, short ids.

Every value that comes from a task, a worker or a user goes through `sanitize`, `fit` or `safe` before it is drawn:
Textual does not filter escape sequences and parses brackets in plain strings as markup.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final
from uuid import UUID

import humanize
from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.style import Style

from horsies.model import text as model_text
from horsies.model.task import short_form
from horsies.model.text import sanitize_text

_MAX_CHARACTERS: Final = 65_536
"""Longer values are cut before they are processed."""

_CONTROL_REPLACEMENTS: Final = {"\r\n": "⏎", "\n": "⏎", "\r": "⏎", "\t": "→"}
_DAY: Final = 86_400
_AGE_UNITS: Final = ((_DAY, "d"), (3600, "h"), (60, "m"), (1, "s"))
"""Seconds of each unit."""


def sanitize(value: object, *, limit: int = _MAX_CHARACTERS) -> str:
    """`value` as one line of at most `limit` characters, with control characters replaced by visible ones."""
    text = str(value)[: 4 * limit]
    for control, replacement in _CONTROL_REPLACEMENTS.items():
        text = text.replace(control, replacement)
    return sanitize_text(text, limit=limit)


def truncate(text: str, cells: int) -> str:
    """Cut sanitized text to `cells` columns, with an ellipsis at the end."""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1) + "…" if cells > 0 else ""


def truncate_start(text: str, cells: int) -> str:
    """Cut sanitized text to its last `cells` columns, for paths, which differ at the end."""
    if cell_len(text) <= cells:
        return text
    while text and cell_len(text) >= cells:
        text = text[1:]
    return "…" + text if cells > 0 else ""


def fit(value: object, cells: int, *, right: bool = False) -> str:
    """`value`, sanitized, in exactly `cells` columns."""
    text = str(value)
    if text.isascii() and text.isprintable() and len(text) <= cells:
        # Fast path for most cells: every key press redraws a screenful of them.
        return text.rjust(cells) if right else text.ljust(cells)
    shown = truncate(sanitize(text, limit=max(cells, 1) + 1), cells)
    padding = " " * (cells - cell_len(shown))
    return padding + shown if right else shown + padding


def safe(value: object, style: Style | str = "", *, cells: int | None = None) -> Content:
    """`value` as content without markup or control characters, cut to `cells` columns if given."""
    shown = sanitize(value)
    return Content.styled(shown if cells is None else truncate(shown, cells), style)


def format_seconds(span: timedelta) -> str:
    """`0.5s`, `4s`: a short delay."""
    return f"{span.total_seconds():g}s"


def format_age(span: timedelta | None) -> str:
    """`41s`, `3m12s`, `2h05m`, `3d04h`: two units, at most six columns below a hundred days."""
    if span is None:
        return "-"
    seconds = max(int(span.total_seconds()), 0)
    for (size, unit), (smaller_size, smaller_unit) in pairwise(_AGE_UNITS):
        if seconds >= size:
            rest = f"{seconds % size // smaller_size:02}{smaller_unit}" if seconds < 100 * _DAY else ""
            return f"{seconds // size}{unit}{rest}"
    return f"{seconds}s"


def format_short_age(span: timedelta | None) -> str:
    """`41s`, `3m`, `2h`, `31d`: one unit, for narrow columns."""
    if span is None:
        return "-"
    seconds = max(int(span.total_seconds()), 0)
    return next((f"{seconds // size}{unit}" for size, unit in _AGE_UNITS if seconds >= size), "0s")


format_elapsed: Final = model_text.format_elapsed


def format_count(count: int, *, is_estimate: bool = False, is_capped: bool = False) -> str:
    """`1,204`; `10,000+` for a capped count; `~1.6M` for an estimate."""
    if is_estimate:
        return f"~{humanize.metric(count, precision=2).replace(' ', '')}" if count >= 1000 else f"~{count}"
    return f"{count:,}+" if is_capped else f"{count:,}"


def plural(count: int, noun: str) -> str:
    """`1 task`, `3 tasks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_time(at: datetime | None) -> str:
    """The time of day in UTC."""
    return "--:--:--" if at is None else at.astimezone(UTC).strftime("%H:%M:%S")


def format_day_time(at: datetime) -> str:
    """Month, day, hour and minute in UTC, for times that may be days ago."""
    return at.astimezone(UTC).strftime("%m-%d %H:%M")


def short_id(identity: UUID | str | None) -> str:
    """The last eight digits. The first ones of a UUIDv7 are a timestamp that neighbouring ids share."""
    return "-" if identity is None else short_form(identity)
