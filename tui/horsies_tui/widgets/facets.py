"""Facets: counts by value over the newest tasks, to filter by. A popup, or a sidebar if there is room."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from horsies.errors import HorsiesError
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.data.context import AppContext
from horsies_tui.format import format_count, safe
from horsies_tui.widgets.dialogs import Dialog
from horsies_tui.widgets.row_list import Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.search import Facets


FACET_FIELDS: Final = {"statuses": "status", "queues": "queue", "names": "name", "error_codes": "error"}
MAX_VALUES: Final = 20
"""Values shown for each field; rarer ones can be typed into the filter."""

FacetKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetChoice:
    """A value to select and its count, which is None if only the filter contains the value."""

    field: str
    value: str
    count: int | None

    @property
    def key(self) -> FacetKey:
        return self.field, self.value


def _count_text(choice: FacetChoice) -> str:
    return "-" if choice.count is None else format_count(choice.count)


POPUP_COLUMNS: Final[tuple[Column[FacetChoice], ...]] = (
    Column("FIELD", 7, lambda choice: FACET_FIELDS[choice.field], tone=Tone.DIM),
    Column("VALUE", 20, lambda choice: choice.value, grows=1),
    Column("TASKS", 8, _count_text, right=True),
)


class FacetPopup(Dialog[TaskFilter]):
    """A dialog to select facet values; returns the filter with these values, or None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "toggle_value", "select"),
        Binding("f,q", "leave", "close"),
    ]

    def __init__(self, context: AppContext, facets: Awaitable[Facets], task_filter: TaskFilter) -> None:
        super().__init__()
        self._facets = facets
        self._task_filter = task_filter
        self._list: RowList[FacetChoice] = RowList(POPUP_COLUMNS, key=lambda choice: choice.key, context=context)

    def compose(self) -> ComposeResult:
        with Vertical(id="facets"):
            yield self._list
            yield Static("loading …", id="facets-status")

    def on_mount(self) -> None:
        self.query_one("#facets").border_title = "Facets of the newest 10,000 tasks"
        self.run_worker(self._load(), exit_on_error=False)

    async def _load(self) -> None:
        status = self.query_one("#facets-status", Static)
        try:
            facets = await self._facets
        except HorsiesError as error:
            status.update(safe(error.message))
            return
        status.update("space select   Enter filter   Esc close")
        choices = facet_choices(facets, self._task_filter)
        self._list.selection.marks |= selected_keys(choices, self._task_filter)
        self._list.show(choices)

    def action_toggle_value(self) -> None:
        self._list.mark("toggle")

    def on_row_list_opened(self) -> None:
        """Enter: the selected values replace those of the filter; a field without any is no longer filtered."""
        self.dismiss(with_facets(self._task_filter, self._list.selection.marks))


def facet_choices(facets: Facets, task_filter: TaskFilter) -> list[FacetChoice]:
    """The values to choose from, by field, including those of the filter that do not occur."""
    choices: list[FacetChoice] = []
    for field in FACET_FIELDS:
        counts = {facet.value: facet.count for facet in getattr(facets, field)[:MAX_VALUES]}
        # Added even if they do not occur: otherwise they could not be deselected.
        filtered = {value: counts.get(value) for value in getattr(task_filter, field)}
        choices += [FacetChoice(field=field, value=value, count=count) for value, count in (counts | filtered).items()]
    return choices


def selected_keys(choices: list[FacetChoice], task_filter: TaskFilter) -> set[FacetKey]:
    """The choices that the filter contains."""
    return {choice.key for choice in choices if choice.value in getattr(task_filter, choice.field)}


def with_facets(task_filter: TaskFilter, keys: Collection[FacetKey]) -> TaskFilter:
    """The filter with exactly these facet values; its other fields are unchanged."""
    values = {field: tuple(value for key_field, value in keys if key_field == field) for field in FACET_FIELDS}
    return replace(task_filter, **values)


SIDEBAR_COLUMNS: Final[tuple[Column[FacetChoice], ...]] = (
    Column("NEWEST 10K", 11, lambda choice: choice.value, grows=1),
    Column("", 6, _count_text, tone=Tone.DIM, right=True),
)


class FacetList(RowList[FacetChoice]):
    """The sidebar's list. It hides its cursor without focus: actions refer to the cursor of the task list."""

    shows_cursor = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "nav_open", "select")]

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


class FacetSidebar(Vertical):
    """The facets beside the task list; each selection posts `Picked` with the new filter."""

    @dataclass
    class Picked(Message):
        """A value was selected or unselected."""

        filter: TaskFilter

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self._list = FacetList(SIDEBAR_COLUMNS, key=lambda choice: choice.key, context=context)
        self._task_filter: TaskFilter | None = None

    def compose(self) -> ComposeResult:
        yield self._list
        yield Static("space select   f close")

    def show(self, facets: Facets, task_filter: TaskFilter) -> None:
        """Show these facets; the values of the filter are selected."""
        self._task_filter = task_filter
        choices = facet_choices(facets, task_filter)
        self._list.selection.marks = selected_keys(choices, task_filter)
        self._list.show([*_with_headings(choices)])
        self._list.refresh()

    def focus_list(self) -> None:
        self._list.focus()

    def on_row_list_opened(self, message: RowList.Opened) -> None:
        message.stop()
        if self._task_filter is not None:
            self._list.selection.toggle()
            self._list.refresh()
            self.post_message(self.Picked(with_facets(self._task_filter, self._list.selection.marks)))

    # Stop the messages of this list here: the screen would take them for messages of the task list.
    def on_row_list_cursor_moved(self, message: RowList.CursorMoved) -> None:
        message.stop()

    def on_row_list_edge_neared(self, message: RowList.EdgeNeared) -> None:
        message.stop()

    def on_row_list_end_requested(self, message: RowList.EndRequested) -> None:
        message.stop()


def _with_headings(choices: list[FacetChoice]) -> Iterator[FacetChoice | Heading]:
    for field, name in FACET_FIELDS.items():
        of_field = [choice for choice in choices if choice.field == field]
        if of_field:
            yield Heading(name)
        yield from of_field
