"""The whole operator log, as far back as it is worth scrolling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from horsies_ops.reads.events import AuditRow
from horsies_tui.format import number, safe
from horsies_tui.operator_log import about, did, whole
from horsies_tui.widgets.columns import Cell, Column, Tone
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_tui.desk import Desk

COLUMNS: Final = (
    Column[AuditRow](title="AT", width=11, cell=lambda row, _: Cell(f"{row.at:%m-%d %H:%M}", Tone.DIM)),
    Column[AuditRow](title="WHO", width=8, grows=1, cell=lambda row, _: Cell(row.actor)),
    Column[AuditRow](title="DID", width=8, grows=2, cell=lambda row, _: Cell(did(row))),
    Column[AuditRow](title="TO", width=12, grows=2, cell=lambda row, _: Cell(about(row))),
    Column[AuditRow](title="CHANGED", width=7, right=True, cell=lambda row, _: Cell(number(row.affected))),
    Column[AuditRow](title="SKIPPED", width=7, rank=2, right=True, cell=lambda row, _: Cell(number(row.skipped))),
    Column[AuditRow](title="VIA", width=7, rank=3, cell=lambda row, _: Cell(row.via, Tone.DIM)),
    Column[AuditRow](title="WHY", width=12, grows=3, rank=1, cell=lambda row, _: Cell(row.reason or "")),
)


class LogDialog(ModalScreen[None]):
    """The newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l,enter", "leave", "close")]

    def __init__(self, desk: Desk, rows: Sequence[AuditRow]) -> None:
        super().__init__()
        self._rows = tuple(reversed(rows))
        self.list: RowList[AuditRow] = RowList(COLUMNS, key=lambda row: row.id, now=desk.clock.now, glyphs=desk.glyphs)

    def compose(self) -> ComposeResult:
        with Vertical(id="log"):
            yield self.list
            yield Static(id="log-row")

    def on_mount(self) -> None:
        self.query_one("#log").border_title = f"Operator log, the last {len(self._rows):,}"
        self.list.show(self._rows)

    def on_row_list_cursor_moved(self) -> None:
        """Say all about the row under the cursor: the columns have no room for it."""
        row = self.list.current
        self.query_one("#log-row", Static).update(
            Content("\n").join([safe(line) for line in whole(row)] if row is not None else [])
        )

    def on_row_list_opened(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        self.dismiss(None)
