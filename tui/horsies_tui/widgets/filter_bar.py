"""The filter: one line of text, read as it is typed, with what is wrong said beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.containers import Horizontal
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Static

from horsies.model.workflow.plan import WorkflowStatus
from horsies_ops.reads.filters import FilterFault, TaskFilter, filter_text, parse_filter
from horsies_ops.reads.workflows import KEYS, ROOTS, parse_workflow_filter, workflow_filter_text
from horsies_tui.format import safe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.timer import Timer

    from horsies_ops.reads.workflows import WorkflowFilter


TYPING_PAUSE_S: Final = 0.2


class QueryLine(Horizontal):
    """A line that is read as it is typed. A subclass knows what the text means."""

    class Left(Message):
        """Whoever typed is done; the list may have the keys back."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__()
        self._prompt = f" {title} {prompt} "
        self._pause: Timer | None = None
        self._said = ""
        self._told = ""
        self.completion = FilterSuggester()

    @property
    def is_faulty(self) -> bool:
        """Whether what is typed makes no sense, so that what is meant is still what was meant before."""
        return self.has_class("-faulty")

    def understand(self, text: str) -> FilterFault | None:
        """Mean what `text` says from now on; else say what is wrong with it."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Static(self._prompt, id="filter-prompt")
        yield Input(
            placeholder="everything; / to narrow down", suggester=self.completion, compact=True, id="filter-text"
        )
        yield Static("", id="filter-said")

    @property
    def text(self) -> str:
        return self.query_one(Input).value

    def edit(self) -> None:
        """Put the keyboard here, at once: `focus` would leave what is typed next to the keys of the list."""
        self.screen.set_focus(self.query_one(Input))

    def put(self, text: str) -> None:
        """Show this text, as if it had been typed and understood."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = text
        self._find(None)

    def say(self, text: str) -> None:
        """What stands on the right, unless a fault does: how many match."""
        self._told = text
        if not self.is_faulty:
            self._write(text)

    def _write(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.query_one("#filter-said", Static).update(safe(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(TYPING_PAUSE_S, self._read)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._read():
            self.post_message(self.Left())

    def _read(self) -> bool:
        """Understand what is typed; what makes no sense is said and changes nothing."""
        fault = self.understand(self.text)
        self._find(fault)
        return fault is None

    def _find(self, fault: FilterFault | None) -> None:
        """A fault has the place on the right for as long as it stands."""
        self.set_class(fault is not None, "-faulty")
        self._write(self._told if fault is None else f"{fault.message} at {fault.position + 1}")


class FilterLine(QueryLine):
    """`Filter ▸ status:failed queue:mail    58 match`. `Changed` tells of each new filter that makes sense."""

    class Changed(Message):
        """Another filter is meant from now on."""

        def __init__(self, wanted: TaskFilter) -> None:
            super().__init__()
            self.filter = wanted

    class Left(QueryLine.Left):
        """The same, of this line."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = TaskFilter()

    def show(self, wanted: TaskFilter) -> None:
        """Mean this filter, as if it had been typed."""
        self.put(filter_text(wanted))
        self._mean(wanted)

    def understand(self, text: str) -> FilterFault | None:
        match parse_filter(text):
            case FilterFault() as fault:
                return fault
            case wanted:
                return self._mean(wanted)

    def _mean(self, wanted: TaskFilter) -> None:
        if wanted != self.filter:
            self.filter = wanted
            self.post_message(self.Changed(wanted))


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


class RunFilterLine(QueryLine):
    """`Filter ▸ status:running,failed   14 match`."""

    class Changed(Message):
        """Another filter is meant from now on."""

    class Left(QueryLine.Left):
        """Whoever typed is done."""

    def __init__(self, *, prompt: str) -> None:
        super().__init__(prompt=prompt)
        self.filter = ROOTS
        self.completion.keys = tuple(f"{key}:" for key in KEYS)
        self.completion.values = {"status": [status.lower() for status in WorkflowStatus], "sub": ["yes"]}

    @property
    def is_empty(self) -> bool:
        return self.filter == ROOTS and not self.text

    def show(self, wanted: WorkflowFilter) -> None:
        """Mean this filter, as if it had been typed."""
        self.put(workflow_filter_text(wanted))
        self._mean(wanted)

    def understand(self, text: str) -> FilterFault | None:
        match parse_workflow_filter(text):
            case FilterFault() as fault:
                return fault
            case wanted:
                return self._mean(wanted)

    def _mean(self, wanted: WorkflowFilter) -> None:
        if wanted != self.filter:
            self.filter = wanted
            self.post_message(self.Changed())


# Lines for a few words: those that a row must have, and what is looked for in a page.


class WordLine(QueryLine):
    """Takes a line of the screen only while it is used; `Changed` tells of other words."""

    class Changed(Message):
        """Other words are meant from now on."""

    class Left(QueryLine.Left):
        """Whoever typed is done."""

    def __init__(self, *, prompt: str, title: str = "Filter") -> None:
        super().__init__(prompt=prompt, title=title)
        self.completion.keys = ()
        self.meant = ""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.meant.split())

    def edit(self) -> None:
        self.add_class("-used")
        super().edit()

    def clear(self) -> None:
        """Mean everything again."""
        self.put("")
        self.understand("")
        self.remove_class("-used")

    def step_back(self) -> bool:
        """Leave the line, or clear it; False where neither is to be done."""
        if self.has_focus_within:
            self.post_message(self.Left())
        elif self.meant:
            self.clear()
        else:
            return False
        return True

    def leave(self) -> None:
        """Nobody types any more: without a word on it, it is not worth its place."""
        self.set_class(bool(self.meant), "-used")

    def understand(self, text: str) -> FilterFault | None:
        meant = text.strip().lower()
        if meant != self.meant:
            self.meant = meant
            self.post_message(self.Changed())
        return None
