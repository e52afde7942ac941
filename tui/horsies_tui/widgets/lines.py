"""A line of a list, put together from texts that each have their place and their look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style


def line_of(pieces: Sequence[tuple[int, str, Style]], width: int, filling: Style) -> Strip:
    """A line of `width` with each text at its place. A text has exactly the width of its column."""
    runs: list[tuple[str, Style]] = []
    at = 0
    for start, text, style in pieces:
        if start > at:
            _add(runs, " " * (start - at), filling)
        _add(runs, text, style)
        at = max(start, at) + cell_len(text)
    return Strip([Segment(text, style) for text, style in runs], at).adjust_cell_length(width, filling)


def _add(runs: list[tuple[str, Style]], text: str, style: Style) -> None:
    """Lengthen the last run where it looks the same: each one costs on its way to the terminal."""
    if runs and runs[-1][1] is style:
        runs[-1] = (runs[-1][0] + text, style)
    else:
        runs.append((text, style))
