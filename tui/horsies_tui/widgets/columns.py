"""Columns of a list: how wide each is, and which are left out where there is no room."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

T = TypeVar("T")

GAP = 1


class Tone(StrEnum):
    """What a cell means; the stylesheet says how that looks."""

    PLAIN = "plain"
    DIM = "dim"
    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell, as it came from the database; the list makes it harmless and cuts it to size."""

    text: str
    tone: Tone = Tone.PLAIN


# Neither has slots: a frozen generic with them cannot be made as `Column[Task](…)`, which sets an attribute.
@dataclass(frozen=True, kw_only=True)
class Column(Generic[T]):
    """One column of a list of `T`; `cell` is given the row and the database's present time."""

    title: str
    width: int
    """The least that it is worth showing in."""
    cell: Callable[[T, datetime], Cell]
    rank: int = 0
    """Where there is no room for all, those of the highest rank go first."""
    grows: int = 0
    """Its share of the room that is left over."""
    right: bool = False
    ticks: bool = False
    """Whether it changes with time alone."""


@dataclass(frozen=True, kw_only=True)
class Placed(Generic[T]):
    """A column where it stands in the line."""

    column: Column[T]
    at: int
    width: int


def place(
    columns: Sequence[Column[T]], room: int, *, indent: int = 0, skipped: int | None = None
) -> tuple[Placed[T], ...]:
    """The columns that fit into `room`, in their order; none narrower than its minimum, and the first always there.

    With `skipped` their rank does not count: after the first come those that stand so many further to the right.
    """
    room_for_all = room - indent
    chosen = _chosen(columns, room_for_all) if skipped is None else _from(columns, room_for_all, skipped)
    spare = max(room - indent - _needed(chosen), 0)
    shares = sum(column.grows for column in chosen)
    placed: list[Placed[T]] = []
    at = indent
    for column in chosen:
        share = spare * column.grows // shares if shares else 0
        spare, shares = spare - share, shares - column.grows
        placed.append(Placed(column=column, at=at, width=column.width + share))
        at += column.width + share + GAP
    return tuple(placed)


def _chosen(columns: Sequence[Column[T]], room: int) -> list[Column[T]]:
    chosen = list(columns)
    while len(chosen) > 1 and _needed(chosen) > room:
        # Of equal rank the one furthest to the right.
        least = max(range(1, len(chosen)), key=lambda index: (chosen[index].rank, index))
        del chosen[least]
    return chosen


def _from(columns: Sequence[Column[T]], room: int, skipped: int) -> list[Column[T]]:
    chosen = [columns[0], *columns[1 + skipped :]]
    while len(chosen) > 1 and _needed(chosen) > room:
        del chosen[-1]
    return chosen


def _needed(columns: Sequence[Column[T]]) -> int:
    return sum(column.width for column in columns) + GAP * max(len(columns) - 1, 0)
