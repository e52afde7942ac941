"""The filter: one line of text, read as it is typed, with what is wrong said beside it."""

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


class FilterBar(Horizontal):
    """A line that is read as it is typed. A subclass knows what the text means."""

    class Exited(Message):
        """Whoever typed is done; the list may have the keys back."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__()
        self._prompt = f" {title} {prompt} "
        self._pause: Timer | None = None
        self._shown_status = ""
        self._status = ""
        self.suggester = FilterSuggester()

    @property
    def is_invalid(self) -> bool:
        """Whether what is typed makes no sense, so that what is meant is still what was meant before."""
        return self.has_class("-invalid")

    def apply_text(self, text: str) -> FilterFault | None:
        """Mean what `text` says from now on; else say what is wrong with it."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Static(self._prompt, id="filter-prompt")
        yield Input(
            placeholder="everything; / to narrow down", suggester=self.suggester, compact=True, id="filter-text"
        )
        yield Static("", id="filter-status")

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    def edit(self) -> None:
        """Put the keyboard here, at once: `focus` would leave what is typed next to the keys of the list."""
        self.screen.set_focus(self.query_one(Input))

    def set_text(self, text: str) -> None:
        """Show this text, as if it had been typed and understood."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = text
        self._set_fault(None)

    def set_status(self, text: str) -> None:
        """What stands on the right, unless a fault does: how many match."""
        self._status = text
        if not self.is_invalid:
            self._show_status(text)

    def _show_status(self, text: str) -> None:
        if text != self._shown_status:
            self._shown_status = text
            self.query_one("#filter-status", Static).update(safe(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(TYPING_PAUSE_S, self._apply_input)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._apply_input():
            self.post_message(self.Exited())

    def _apply_input(self) -> bool:
        """Understand what is typed; what makes no sense is said and changes nothing."""
        fault = self.apply_text(self.text)
        self._set_fault(fault)
        return fault is None

    def _set_fault(self, fault: FilterFault | None) -> None:
        """A fault has the place on the right for as long as it stands."""
        self.set_class(fault is not None, "-invalid")
        self._show_status(self._status if fault is None else f"{fault.message} at {fault.position + 1}")


class TaskFilterBar(FilterBar):
    """`Filter ▸ status:failed queue:mail    58 match`. `Changed` tells of each new filter that makes sense."""

    class Changed(Message):
        """Another filter is meant from now on."""

        def __init__(self, wanted: TaskFilter) -> None:
            super().__init__()
            self.filter = wanted

    class Exited(FilterBar.Exited):
        """The same, of this line."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = TaskFilter()

    def set_filter(self, task_filter: TaskFilter) -> None:
        """Mean this filter, as if it had been typed."""
        self.set_text(format_filter(task_filter))
        self._accept(task_filter)

    def apply_text(self, text: str) -> FilterFault | None:
        match parse_filter(text):
            case FilterFault() as fault:
                return fault
            case wanted:
                return self._accept(wanted)

    def _accept(self, task_filter: TaskFilter) -> None:
        if task_filter != self.filter:
            self.filter = task_filter
            self.post_message(self.Changed(task_filter))


class FilterSuggester(Suggester):
    """Goes on with the word that is being typed: a key, or a value that occurs among the newest tasks."""

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
        super().__init__(use_cache=False, case_sensitive=True)
        self.keys: Sequence[str] = self.KEYS
        self.values: Mapping[str, Sequence[str]] = {}
        """By key, the most frequent first."""

    async def get_suggestion(self, value: str) -> str | None:
        head, space, word = value.rpartition(" ")
        key, colon, typed = word.removeprefix("-").partition(":")
        known = self.values.get(key, ()) if colon else self.keys
        begun = typed.rpartition(",")[2] if colon else word.removeprefix("-")
        going_on = next((each for each in known if begun and each != begun and each.startswith(begun)), None)
        return None if going_on is None else head + space + word + going_on[len(begun) :]


# The filter of runs.


class RunFilterBar(FilterBar):
    """`Filter ▸ status:running,failed   14 match`."""

    class Changed(Message):
        """Another filter is meant from now on."""

    class Exited(FilterBar.Exited):
        """Whoever typed is done."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = DEFAULT_WORKFLOW_FILTER
        self.suggester.keys = tuple(f"{key}:" for key in WORKFLOW_FILTER_KEYS)
        self.suggester.values = {"status": [status.lower() for status in WorkflowStatus], "sub": ["yes"]}

    @property
    def is_empty(self) -> bool:
        return self.filter == DEFAULT_WORKFLOW_FILTER and not self.text

    def show(self, workflow_filter: WorkflowFilter) -> None:
        """Mean this filter, as if it had been typed."""
        self.set_text(format_workflow_filter(workflow_filter))
        self._mean(workflow_filter)

    def apply_text(self, text: str) -> FilterFault | None:
        match parse_workflow_filter(text):
            case FilterFault() as fault:
                return fault
            case wanted:
                return self._mean(wanted)

    def _mean(self, workflow_filter: WorkflowFilter) -> None:
        if workflow_filter != self.filter:
            self.filter = workflow_filter
            self.post_message(self.Changed())


# Lines for a few words: those that a row must have, and what is looked for in a page.


class SearchBar(FilterBar):
    """Takes a line of the screen only while it is used; `Changed` tells of other words."""

    class Changed(Message):
        """Other words are meant from now on."""

    class Exited(FilterBar.Exited):
        """Whoever typed is done."""

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
        """Mean everything again."""
        self.set_text("")
        self.apply_text("")
        self.remove_class("-open")

    def step_back(self) -> bool:
        """Leave the line, or clear it; False where neither is to be done."""
        if self.has_focus_within:
            self.post_message(self.Exited())
        elif self.search_text:
            self.clear()
        else:
            return False
        return True

    def hide_if_empty(self) -> None:
        """Nobody types any more: without a word on it, it is not worth its place."""
        self.set_class(bool(self.search_text), "-open")

    def apply_text(self, text: str) -> FilterFault | None:
        meant = text.strip().lower()
        if meant != self.search_text:
            self.search_text = meant
            self.post_message(self.Changed())
        return None
