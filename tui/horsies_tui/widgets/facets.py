"""The facets beside the list, where there is room: what is picked narrows the list down at once."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from horsies.errors import HorsiesError
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.data.context import AppContext
from horsies_tui.format import format_count, safe
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.search import Facets


# What occurs among the newest tasks, with counts, to pick a filter from.

FACET_FIELDS: Final = {"statuses": "status", "queues": "queue", "names": "name", "error_codes": "error"}
MAX_VALUES: Final = 20
"""Of each part; the others are rare and can be typed."""

FacetKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetChoice:
    """A value that can be picked, and how often it occurs; None where it does not, but the filter names it."""

    field: str
    value: str
    count: int | None

    @property
    def key(self) -> FacetKey:
        return self.field, self.value


POPUP_COLUMNS: Final = (
    Column[FacetChoice](title="PART", width=7, cell=lambda choice, _: Cell(FACET_FIELDS[choice.field], Tone.DIM)),
    Column[FacetChoice](title="VALUE", width=20, grows=1, cell=lambda choice, _: Cell(choice.value)),
    Column[FacetChoice](
        title="TASKS",
        width=8,
        right=True,
        cell=lambda choice, _: Cell("-" if choice.count is None else format_count(choice.count)),
    ),
)


class FacetPopup(ModalScreen[TaskFilter | None]):
    """Ends with the filter that was picked, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pick", "pick"),
        Binding("escape,f,q", "leave", "close"),
    ]

    def __init__(self, context: AppContext, facets: Awaitable[Facets], task_filter: TaskFilter) -> None:
        super().__init__()
        self._facets = facets
        self._task_filter = task_filter
        self._list: RowList[FacetChoice] = RowList(
            POPUP_COLUMNS, key=lambda choice: choice.key, now=context.clock.now, glyphs=context.glyphs
        )

    def compose(self) -> ComposeResult:
        with Vertical(id="facets"):
            yield self._list
            yield Static("looking …", id="facets-status")

    def on_mount(self) -> None:
        self.query_one("#facets").border_title = "Among the newest 10,000"
        self.run_worker(self._load(), exit_on_error=False)

    async def _load(self) -> None:
        said = self.query_one("#facets-status", Static)
        try:
            facets = await self._facets
        except HorsiesError as error:
            said.update(safe(error.message))
            return
        said.update("spc picks   Enter filters   Esc closes")
        offered = facet_choices(facets, self._task_filter)
        self._list.selection.marks |= {
            choice.key for choice in offered if choice.value in getattr(self._task_filter, choice.field)
        }
        self._list.show(offered)

    def action_pick(self) -> None:
        self._list.selection.toggle()
        self._list.refresh_marks()
        self._list.action_nav_down()

    def on_row_list_opened(self) -> None:
        """Enter takes what is picked, and nothing else: who let everything go wants no such part."""
        self.dismiss(with_facets(self._task_filter, self._list.selection.marks))

    def action_leave(self) -> None:
        self.dismiss(None)


def facet_choices(facets: Facets, task_filter: TaskFilter) -> list[FacetChoice]:
    """What can be picked, part by part; what the filter names already is among it, whether it occurs or not."""
    offered: list[FacetChoice] = []
    for field in FACET_FIELDS:
        found = {facet.value: facet.count for facet in getattr(facets, field)[:MAX_VALUES]}
        named = {value: found.get(value) for value in getattr(task_filter, field)}
        offered += [FacetChoice(field=field, value=value, count=count) for value, count in (found | named).items()]
    return offered


def with_facets(task_filter: TaskFilter, keys: Collection[FacetKey]) -> TaskFilter:
    """The filter with these values in the parts that can be picked, and all its other parts as they were."""
    return replace(
        task_filter, **{field: tuple(value for part, value in keys if part == field) for field in FACET_FIELDS}
    )


SIDEBAR_COLUMNS: Final = (
    Column[FacetChoice](title="AMONG NEWEST", width=11, grows=1, cell=lambda choice, _: Cell(choice.value)),
    Column[FacetChoice](
        title="",
        width=6,
        right=True,
        cell=lambda choice, _: Cell("-" if choice.count is None else format_count(choice.count), Tone.DIM),
    ),
)


class FacetList(RowList[FacetChoice]):
    """A list where the space bar picks. The cursor that counts is that of the tasks beside it."""

    shows_cursor = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "nav_open", "pick")]

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


class FacetSidebar(Vertical):
    """Shows what it was last given; `Picked` tells of the filter that is meant from now on."""

    class Picked(Message):
        """A value was picked, or one that was picked before was let go."""

        def __init__(self, wanted: TaskFilter) -> None:
            super().__init__()
            self.filter = wanted

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self._list = FacetList(
            SIDEBAR_COLUMNS, key=lambda choice: choice.key, now=context.clock.now, glyphs=context.glyphs
        )
        self._task_filter: TaskFilter | None = None

    def compose(self) -> ComposeResult:
        yield self._list
        yield Static("spc picks   f leaves")

    def show(self, facets: Facets, task_filter: TaskFilter) -> None:
        """Offer these; what the filter names already is picked."""
        self._task_filter = task_filter
        offered = facet_choices(facets, task_filter)
        self._list.selection.marks = {
            choice.key for choice in offered if choice.value in getattr(task_filter, choice.field)
        }
        self._list.show([*_under_headings(offered)])
        self._list.refresh()

    def focus_list(self) -> None:
        """Put the keyboard here."""
        self._list.focus()

    def on_row_list_opened(self, message: RowList.Opened) -> None:
        message.stop()
        if self._task_filter is not None:
            self._list.selection.toggle()
            self._list.refresh()
            self.post_message(self.Picked(with_facets(self._task_filter, self._list.selection.marks)))

    # What happens to this list is nothing to the list of tasks beside it, whose screen would hear of it next.
    def on_row_list_cursor_moved(self, message: RowList.CursorMoved) -> None:
        message.stop()

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        message.stop()

    def on_row_list_end_requested(self, message: RowList.EndRequested) -> None:
        message.stop()


def _under_headings(offered: list[FacetChoice]) -> Iterator[FacetChoice | Heading]:
    """Each part under its name."""
    for field, name in FACET_FIELDS.items():
        of_field = [choice for choice in offered if choice.field == field]
        if of_field:
            yield Heading(name)
        yield from of_field
