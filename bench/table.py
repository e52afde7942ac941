"""Renders figures as a Markdown table for the terminal and RESULTS.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.rounds import Figure, Spread

if TYPE_CHECKING:
    from bench.machine import Machine

HEADING = (
    "| measurement | unit | median (min–max) | ratio (min–max) | compared with | goal |\n|---|---|---|---|---|---|"
)


def render(figures: list[Figure], machine: Machine, *, rounds: int) -> str:
    return "\n".join([_caption(machine, rounds), "", HEADING, *map(_row, figures)])


def _caption(machine: Machine, rounds: int) -> str:
    return (
        f"{machine.date}, {rounds} rounds, {machine.processors} processors, {machine.system}, "
        f"Python {machine.python}, PostgreSQL {machine.postgresql}, asyncpg {machine.asyncpg}, "
        f"load {machine.load_before} before and {machine.load_after} after."
    )


def _row(figure: Figure) -> str:
    digits = 2 if figure.unit == "ms" else 0
    cells = (
        figure.name,
        figure.unit,
        _spread(figure.value, digits),
        "" if figure.ratio is None else _spread(figure.ratio, 2),
        figure.against or "",
        "" if figure.goal is None else f"≥ {figure.goal:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:,.{digits}f} ({spread.least:,.{digits}f}–{spread.most:,.{digits}f})"
