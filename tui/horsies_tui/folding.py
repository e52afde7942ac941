"""Bursts folded into a line or two, so that what is rare can still be seen among what is many."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from horsies_tui.format import clock
from horsies_tui.widgets.row_list import Heading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horsies_tui.entries import Entry

MOST_LINES: Final = 12
"""Of one second; what is more becomes a single line."""


def folded(entries: Iterable[Entry]) -> list[Entry | Heading]:
    """The entries, the newest first; those of one second that say the same are one line."""
    return [line for _, second in groupby(entries, key=_second) for line in _lines(list(second))]


def _second(entry: Entry) -> int:
    return int(entry.at.timestamp())


def _lines(second: Sequence[Entry]) -> Iterator[Entry | Heading]:
    groups: dict[object, list[Entry]] = {}
    for entry in second:
        groups.setdefault(entry.alike, []).append(entry)
    merged = [_merged(group) for group in groups.values()]
    yield from merged[:MOST_LINES]
    if rest := merged[MOST_LINES:]:
        count = sum(entry.count for entry in rest)
        yield Heading(f"{clock(rest[0].at)}  {count:,} more folded, z unfolds")


def _merged(group: Sequence[Entry]) -> Entry:
    if len(group) == 1:
        return group[0]
    count = sum(entry.count for entry in group)
    ids = tuple(dict.fromkeys(each for entry in group for each in entry.ids))
    # The first that came is always among them: the line keeps its key while others join it.
    return replace(
        group[0],
        key=group[-1].key,
        subject=f"×{count:,} {group[0].stem}".rstrip(),
        note=", ".join(dict.fromkeys(entry.note for entry in group if entry.note)),
        count=count,
        ids=ids,
    )
