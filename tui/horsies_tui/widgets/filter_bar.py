"""Filter inputs: one line of text, parsed while it is typed, with the parse error beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widgets import Input, Static

from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.filters import FilterFault, TaskFilter, format_filter, parse_filter
from horsies_ops.reads.workflows import (
    DEFAULT_WORKFLOW_FILTER,
    WORKFLOW_FILTER_KEYS,
    WorkflowFilter,
    format_workflow_filter,
    parse_workflow_filter,
)
from horsies_tui.format import safe

TYPING_PAUSE_S: Final = 0.2
"""Text is parsed after this pause in typing."""


class FilterBar(Horizontal):
    """Base class of the filter inputs; subclasses parse the text."""

    class Exited(Message):
        """The user finished typing; the list can have the focus again."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__()
        self._prompt = f" {title} {prompt} "
        self._pause: Timer | None = None
        self._shown_status = ""
        self._status = ""
        self.suggester = FilterSuggester()

    @property
    def is_invalid(self) -> bool:
        """Whether the text is invalid; the previous filter then still applies."""
        return self.has_class("-invalid")

    def apply_text(self, text: str) -> FilterFault | None:
        """Parse and apply the text, or return the fault."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Static(self._prompt, id="filter-prompt")
        yield Input(placeholder="no filter; / to edit", suggester=self.suggester, compact=True, id="filter-text")
        yield Static("", id="filter-status")

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    def edit(self) -> None:
        """Focus the input at once; `focus()` is deferred, and the next key would still go to the list."""
        self.screen.set_focus(self.query_one(Input))

    def set_text(self, text: str) -> None:
        """Show a valid text without parsing it."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = text
        self._set_fault(None)

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
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(TYPING_PAUSE_S, self._apply_input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._apply_input():
            self.post_message(self.Exited())

    def _apply_input(self) -> bool:
        """Apply the typed text; returns False and shows the fault if it is invalid."""
        fault = self.apply_text(self.text)
        self._set_fault(fault)
        return fault is None

    def _set_fault(self, fault: FilterFault | None) -> None:
        self.set_class(fault is not None, "-invalid")
        self._show_status(self._status if fault is None else f"{fault.message} at {fault.position + 1}")


class TaskFilterBar(FilterBar):
    """Filter of tasks: `Filter ▸ status:failed queue:mail    58 match`."""

    class Changed(Message):
        """A new valid filter was entered."""

        def __init__(self, task_filter: TaskFilter) -> None:
            super().__init__()
            self.filter = task_filter

    class Exited(FilterBar.Exited):
        """Textual derives handler names from the class, so each bar has its own message."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = TaskFilter()

    def set_filter(self, task_filter: TaskFilter) -> None:
        """Show and apply this filter."""
        self.set_text(format_filter(task_filter))
        self._accept(task_filter)

    def apply_text(self, text: str) -> FilterFault | None:
        match parse_filter(text):
            case FilterFault() as fault:
                return fault
            case task_filter:
                return self._accept(task_filter)

    def _accept(self, task_filter: TaskFilter) -> None:
        if task_filter != self.filter:
            self.filter = task_filter
            self.post_message(self.Changed(task_filter))


class FilterSuggester(Suggester):
    """Completes the last word: a filter key, or a value from the facets."""

    KEYS = (
        "status:",
        "queue:",
        "name:",
        "err:",
        "worker:",
        "wf:",
        "id:",
        "age<",
        "age>",
        "wait>",
        "run>",
        "hb>",
        "att>=",
        "due:later",
    )

    def __init__(self) -> None:
        # No cache: the values change with the facets.
        super().__init__(use_cache=False, case_sensitive=True)
        self.keys: Sequence[str] = self.KEYS
        self.values: Mapping[str, Sequence[str]] = {}
        """Values by filter key, most frequent first."""

    async def get_suggestion(self, value: str) -> str | None:
        word = value.rpartition(" ")[2]
        # A leading `-` negates a part; values are separated by commas, and only the last one is completed.
        key, colon, typed_values = word.removeprefix("-").partition(":")
        candidates = self.values.get(key, ()) if colon else self.keys
        prefix = typed_values.rpartition(",")[2] if colon else word.removeprefix("-")
        matches = (text for text in candidates if prefix and text != prefix and text.startswith(prefix))
        completion = next(matches, None)
        return None if completion is None else value + completion[len(prefix) :]


class RunFilterBar(FilterBar):
    """Filter of workflow runs: `Filter ▸ status:running,failed   14 match`."""

    class Changed(Message):
        """A new valid filter was entered."""

    class Exited(FilterBar.Exited):
        """See TaskFilterBar.Exited."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = DEFAULT_WORKFLOW_FILTER
        self.suggester.keys = tuple(f"{key}:" for key in WORKFLOW_FILTER_KEYS)
        self.suggester.values = {"status": [status.lower() for status in WorkflowStatus], "sub": ["yes"]}

    @property
    def is_empty(self) -> bool:
        return self.filter == DEFAULT_WORKFLOW_FILTER and not self.text

    def set_filter(self, workflow_filter: WorkflowFilter) -> None:
        """Show and apply this filter."""
        self.set_text(format_workflow_filter(workflow_filter))
        self._accept(workflow_filter)

    def apply_text(self, text: str) -> FilterFault | None:
        match parse_workflow_filter(text):
            case FilterFault() as fault:
                return fault
            case workflow_filter:
                return self._accept(workflow_filter)

    def _accept(self, workflow_filter: WorkflowFilter) -> None:
        if workflow_filter != self.filter:
            self.filter = workflow_filter
            self.post_message(self.Changed())


class SearchBar(FilterBar):
    """Plain text search in lists and pages; hidden while it is not used."""

    class Changed(Message):
        """The search text changed."""

    class Exited(FilterBar.Exited):
        """See TaskFilterBar.Exited."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__(prompt=prompt, title=title)
        self.suggester.keys = ()
        self.search_text = ""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.search_text.split())

    def edit(self) -> None:
        self.add_class("-open")
        super().edit()

    def clear(self) -> None:
        """Remove the search text and hide the bar."""
        self.set_text("")
        self.apply_text("")
        self.remove_class("-open")

    def step_back(self) -> bool:
        """Leave the input, or clear the text; False if there is nothing to do."""
        if self.has_focus_within:
            self.post_message(self.Exited())
        elif self.search_text:
            self.clear()
        else:
            return False
        return True

    def hide_if_empty(self) -> None:
        """Hide the bar after editing if it has no text."""
        self.set_class(bool(self.search_text), "-open")

    def apply_text(self, text: str) -> FilterFault | None:
        search_text = text.strip().lower()
        if search_text != self.search_text:
            self.search_text = search_text
            self.post_message(self.Changed())
        return None
