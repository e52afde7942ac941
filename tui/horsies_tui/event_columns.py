"""What happened, in columns."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

from horsies_tui.widgets.columns import Cell, Column, Tone

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_tui.entries import Entry


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


EVENT_COLUMNS: Final[tuple[Column[Entry], ...]] = (
    Column(title="TIME", width=12, cell=lambda entry, _: Cell(_time(entry.at), Tone.DIM)),
    Column(title="ABOUT", width=6, cell=lambda entry, _: Cell(entry.kind)),
    Column(title="WHICH", width=20, grows=2, cell=lambda entry, _: Cell(entry.subject)),
    Column(title="WHAT", width=20, grows=1, cell=lambda entry, _: Cell(entry.what, entry.tone)),
    Column(title="MORE", width=15, grows=3, rank=1, cell=lambda entry, _: Cell(entry.note, Tone.DIM)),
)
