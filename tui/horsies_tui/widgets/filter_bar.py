"""Filters: a line of text, parsed while it is typed; facets, as a popup or, if there is room, in a sidebar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Input, Static

from horsies.errors import HorsiesError
from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, parse_filter
from horsies_ops.reads.workflows import (
    DEFAULT_WORKFLOW_FILTER,
    WORKFLOW_FILTER_KEYS,
    WorkflowFilter,
    format_workflow_filter,
    parse_workflow_filter,
)
from horsies_tui.data.context import AppContext
from horsies_tui.format import format_count, safe
from horsies_tui.theme import Glyph
from horsies_tui.widgets.dialogs import Dialog
from horsies_tui.widgets.row_list import Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.search import Facets

F = TypeVar("F")

TYPING_PAUSE_S: Final = 0.2
"""Text is parsed after this pause in typing."""


@dataclass(frozen=True, kw_only=True)
class FilterSyntax(Generic[F]):
    """How a filter is written as text."""

    parse: Callable[[str], F | FilterFault]
    format: Callable[[F], str]
    default: F
    """The filter of an empty text."""
    keys: Sequence[str] = ()
    """Beginnings of words that are suggested while typing."""
    values: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Suggested values by filter key."""


TASK_FILTER: Final = FilterSyntax(
    parse=parse_filter,
    format=format_filter,
    default=TaskFilter(),
    keys=(
        *("status:", "queue:", "name:", "err:", "worker:", "wf:", "id:"),
        *("age<", "age>", "wait>", "run>", "hb>", "att>=", "due:later"),
    ),
)
"""Filters of tasks, such as `status:failed queue:mail`."""

RUN_FILTER: Final = FilterSyntax[WorkflowFilter](
    parse=parse_workflow_filter,
    format=format_workflow_filter,
    default=DEFAULT_WORKFLOW_FILTER,
    keys=tuple(f"{key}:" for key in WORKFLOW_FILTER_KEYS),
    values={"status": [status.lower() for status in WorkflowStatus], "sub": ["yes"]},
)
"""Filters of workflow runs, such as `status:running,failed`."""

SEARCH_TEXT: Final = FilterSyntax[str](parse=lambda text: text.strip().lower(), format=str, default="")


class FilterBar(Horizontal, Generic[F]):
    """`Filter ▸ status:failed queue:mail    58 match`."""

    class Changed(Message):
        """`filter` has changed."""

    class Exited(Message):
        """The user finished typing; the list can have the focus again."""

    def __init__(self, syntax: FilterSyntax[F], *, title: str = "Filter") -> None:
        super().__init__()
        self.filter = syntax.default
        self.suggester = FilterSuggester(syntax.keys, syntax.values)
        self._syntax = syntax
        self._prompt = f" {title} {Glyph.PROMPT} "
        self._typing_timer: Timer | None = None
        self._shown_status = ""
        self._status = ""

    def compose(self) -> ComposeResult:
        yield Static(self._prompt, id="filter-prompt")
        yield Input(placeholder="no filter; / to edit", suggester=self.suggester, compact=True, id="filter-text")
        yield Static("", id="filter-status")

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    @property
    def is_invalid(self) -> bool:
        """Whether the text is invalid; the previous filter then still applies."""
        return self.has_class("-invalid")

    @property
    def is_empty(self) -> bool:
        return self.filter == self._syntax.default and not self.text

    def edit(self) -> None:
        """Focus the input at once; `focus()` is deferred, and the next key would still go to the list."""
        self.screen.set_focus(self.query_one(Input))

    def set_filter(self, new_filter: F) -> None:
        """Show and apply this filter."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self._syntax.format(new_filter)
        self._set_fault(None)
        self._accept(new_filter)

    def clear(self) -> None:
        self.set_filter(self._syntax.default)

    def step_back(self) -> bool:
        """Leave the input, or clear the filter; False if there is nothing to do."""
        if self.has_focus_within:
            self.post_message(self.Exited())
        elif not self.is_empty:
            self.clear()
        else:
            return False
        return True

    def set_status(self, text: str) -> None:
        """Set the text on the right (number of matches); a fault takes precedence."""
        self._status = text
        if not self.is_invalid:
            self._show_status(text)

    def _show_status(self, text: str) -> None:
        # Counts arrive about once a second; an update of the same text would still cause a layout.
        if text != self._shown_status:
            self._shown_status = text
            self.query_one("#filter-status", Static).update(safe(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        # Each key restarts the timer, so that typing a word causes one query.
        if self._typing_timer is not None:
            self._typing_timer.stop()
        self._typing_timer = self.set_timer(TYPING_PAUSE_S, self._apply_input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._apply_input():
            self.post_message(self.Exited())

    def _apply_input(self) -> bool:
        """Apply the typed text; returns False and shows the fault if it is invalid."""
        match self._syntax.parse(self.text):
            case FilterFault() as fault:
                self._set_fault(fault)
                return False
            case new_filter:
                self._set_fault(None)
                self._accept(new_filter)
                return True

    def _accept(self, new_filter: F) -> None:
        if new_filter != self.filter:
            self.filter = new_filter
            self.post_message(self.Changed())

    def _set_fault(self, fault: FilterFault | None) -> None:
        self.set_class(fault is not None, "-invalid")
        self._show_status(self._status if fault is None else f"{fault.message} at {fault.position + 1}")


class SearchBar(FilterBar[str]):
    """Plain text search in lists and pages; `filter` is in lower case. Hidden while it is not used."""

    def __init__(self, *, title: str = "Filter") -> None:
        super().__init__(SEARCH_TEXT, title=title)

    def edit(self) -> None:
        self.add_class("-open")
        super().edit()

    def clear(self) -> None:
        super().clear()
        self.remove_class("-open")

    def on_filter_bar_exited(self) -> None:
        self.set_class(bool(self.filter), "-open")


class FilterSuggester(Suggester):
    """Completes the last word: a filter key, or a value from the facets."""

    def __init__(self, keys: Sequence[str], values: Mapping[str, Sequence[str]]) -> None:
        # No cache: the values change with the facets.
        super().__init__(use_cache=False, case_sensitive=True)
        self.values = values
        """Values by filter key, most frequent first."""
        self._keys = keys

    async def get_suggestion(self, value: str) -> str | None:
        word = value.rpartition(" ")[2]
        # A leading `-` negates a part; values are separated by commas, and only the last one is completed.
        key, colon, typed_values = word.removeprefix("-").partition(":")
        candidates = self.values.get(key, ()) if colon else self._keys
        prefix = typed_values.rpartition(",")[2] if colon else word.removeprefix("-")
        matches = (text for text in candidates if prefix and text != prefix and text.startswith(prefix))
        completion = next(matches, None)
        return None if completion is None else value + completion[len(prefix) :]


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
    """A dialog to select facet values; returns the filter with these values, or None if the user went back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "toggle_value", "select"),
        Binding("f,q", "leave", "back"),
    ]

    def __init__(self, context: AppContext, facets: Awaitable[Facets], task_filter: TaskFilter) -> None:
        super().__init__()
        self._facets = facets
        self._task_filter = task_filter
        self._list: RowList[FacetChoice] = RowList(POPUP_COLUMNS, key=lambda choice: choice.key, context=context)

    def compose(self) -> ComposeResult:
        with Vertical(id="facets"):
            yield self._list
            yield Static("loading …", id="facets-status", classes="keys")

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
        status.update("space select   Enter filter   Esc back")
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
    for name in FACET_FIELDS:
        counts = {facet.value: facet.count for facet in getattr(facets, name)[:MAX_VALUES]}
        # Added even if they do not occur: otherwise they could not be deselected.
        filtered = {value: counts.get(value) for value in getattr(task_filter, name)}
        choices += [FacetChoice(field=name, value=value, count=count) for value, count in (counts | filtered).items()]
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
    for name, label in FACET_FIELDS.items():
        of_field = [choice for choice in choices if choice.field == name]
        if of_field:
            yield Heading(label)
        yield from of_field
