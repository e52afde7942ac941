"""Screens with a list of tasks in which rows can be marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from horsies_tui.screens.acting import ActingScreen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies_tui.widgets.row_list import RowList


class MarkingScreen(ActingScreen):
    """Keys of the list are the ids of tasks. Marked rows are meant; where there are none, the row under the cursor."""

    list: RowList[Any]

    @property
    def chosen(self) -> tuple[UUID, ...]:
        """What an action would be about."""
        return tuple(key for key in self.list.selection.chosen if isinstance(key, UUID))

    def settled(self, changed: Sequence[UUID]) -> None:
        self.list.selection.unmark(changed)
        self.list.marks_changed()
        self.desk.store.refresh()

    def action_mark_toggle(self) -> None:
        self.list.selection.toggle()
        self.list.marks_changed()
        self.list.action_nav_down()

    def action_mark_range(self) -> None:
        self.list.selection.mark_range()
        self.list.marks_changed()

    def action_mark_page(self) -> None:
        self.list.selection.mark_all()
        self.list.marks_changed()

    def action_mark_none(self) -> None:
        self.list.selection.unmark()
        self.list.marks_changed()

    def action_copy_id(self) -> None:
        self.copy("\n".join(map(str, self.chosen)), "ids")
