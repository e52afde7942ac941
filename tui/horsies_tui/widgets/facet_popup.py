"""What occurs among the newest tasks, with counts, to pick a filter from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import SelectionList, Static
from textual.widgets.selection_list import Selection

from horsies.errors import HorsiesError
from horsies_ops.reads.filter import TaskFilter
from horsies_tui.format import fit, safe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from horsies_ops.reads.counts import Facets

Pick = tuple[str, str]
"""A part of the filter, and one of its values."""

FIELDS: Final = {"statuses": "status", "queues": "queue", "names": "name", "error_codes": "error"}
MOST_SHOWN: Final = 20
"""Of each part; the others are rare and can be typed."""


class FacetPopup(ModalScreen[TaskFilter | None]):
    """Ends with the filter that was picked, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "take", priority=True),
        Binding("escape,f,q", "leave", "close"),
    ]

    def __init__(self, facets: Awaitable[Facets], wanted: TaskFilter) -> None:
        super().__init__()
        self._facets = facets
        self._wanted = wanted
        self._list: SelectionList[Pick] = SelectionList()

    def compose(self) -> ComposeResult:
        with Vertical(id="facets"):
            yield Static("looking …", id="facets-said")
            yield self._list
            yield Static("spc picks   Enter filters   Esc closes")

    def on_mount(self) -> None:
        self.query_one("#facets").border_title = "Among the newest 10,000"
        self._list.focus()
        self.run_worker(self._look(), exit_on_error=False)

    async def _look(self) -> None:
        said = self.query_one("#facets-said", Static)
        try:
            facets = await self._facets
        except HorsiesError as error:
            said.update(safe(error.message))
            return
        said.display = False
        self._list.add_options(selections(facets, self._wanted))

    def action_take(self) -> None:
        self.dismiss(picked(self._wanted, self._list.selected))

    def action_leave(self) -> None:
        self.dismiss(None)


def selections(facets: Facets, wanted: TaskFilter) -> list[Selection[Pick]]:
    """One line a value, part by part; what the filter names already is picked."""
    return [
        Selection(
            safe(f"{fit(title, 7)} {fit(facet.value, 34)} {facet.count:>8,}"),
            (name, facet.value),
            initial_state=facet.value in getattr(wanted, name),
        )
        for name, title in FIELDS.items()
        for facet in getattr(facets, name)[:MOST_SHOWN]
    ]


def picked(wanted: TaskFilter, picks: Sequence[Pick]) -> TaskFilter:
    """The filter with these values in the parts that can be picked, and all its other parts as they were."""
    return replace(wanted, **{name: tuple(value for field, value in picks if field == name) for name in FIELDS})
