"""Dialogs: text prompt, sort picker and help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from horsies_tui.format import fit, safe
from horsies_tui.keys import KEY_RULES, KeyScope, SharedScope, actions_in, key_label, scope_title

T = TypeVar("T")

BACK_KEYS: Final = "Enter or Esc back"
"""Subtitle of dialogs that only show something."""


class Dialog(ModalScreen[T | None]):
    """Base class of dialogs that return None if the user goes back. The way out is always called that."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back")]

    def action_leave(self) -> None:
        self.dismiss(None)


class PromptDialog(Dialog[str]):
    """Asks for a line of text. Result: the text, or None if the user went back."""

    def __init__(self, question: str, default: str = "") -> None:
        super().__init__()
        self._question = question
        self._default = default

    def compose(self) -> ComposeResult:
        with Vertical(id="prompt"):
            yield Static(safe(self._question))
            yield Input(self._default, compact=True)
            yield Static("Enter continue   Esc back", classes="keys")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOrder:
    """The sort column of a list and its direction."""

    column: str
    is_descending: bool = True

    def with_column(self, column: str) -> SortOrder:
        """Sort by this column, descending; the current column again reverses the direction."""
        return SortOrder(column=column, is_descending=not self.is_descending if column == self.column else True)

    def __str__(self) -> str:
        return f"sorted by {self.column} {'descending' if self.is_descending else 'ascending'}"


class SortPicker(Dialog[str]):
    """Result: a column name or None. `s`, the key that opens it, picks the current column, which reverses the order."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "reverse", "reverse"),
        Binding("q", "leave", "back"),
    ]

    def __init__(self, names: Sequence[str], current: str) -> None:
        super().__init__()
        self._names = names
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical(id="sort"):
            yield OptionList(*(Option(name, id=name) for name in self._names), compact=True, markup=False)
            yield Static("Enter sort   s reverse   Esc back", classes="keys")

    def on_mount(self) -> None:
        self.query_one("#sort").border_title = "Sort by"
        self.query_one(OptionList).highlighted = list(self._names).index(self._current)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_reverse(self) -> None:
        self.dismiss(self._current)


class HelpDialog(Dialog[None]):
    """Help: the key rules, then the keys of the current screen, of lists and of the whole app."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,question_mark,f1,enter", "leave", "back")]

    def __init__(self, scope: KeyScope, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._scope = scope
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(help_content(self._scope, self._keymap))

    def on_mount(self) -> None:
        box = self.query_one("#help")
        box.border_title, box.border_subtitle = f"Keys of {scope_title(self._scope)}", BACK_KEYS


def help_content(scope: KeyScope, keymap: Mapping[str, str]) -> Content:
    """The help text, generated from the table of actions and the user's keymap."""
    rules = [Content.styled(f"• {rule}", "dim") for rule in KEY_RULES]
    scopes = (scope, SharedScope.LIST, SharedScope.APP)
    keys = [line for shown in scopes for line in _help_section(shown, keymap)]
    return Content("\n").join([*rules, *keys])


def _help_section(scope: KeyScope, keymap: Mapping[str, str]) -> list[Content]:
    lines = [Content(""), Content.styled(scope_title(scope), "bold")]
    for action in actions_in(scope):
        override = keymap.get(action.id)
        keys = action.keys if override is None else tuple(filter(None, override.split(",")))
        shown = fit(" ".join(key_label(key) for key in keys) or "(off)", 9)
        lines.append(
            Content.assemble(
                ("  " + shown, "bold $text-accent"), (fit(action.id, 14), "dim"), safe(action.help_in(scope))
            )
        )
    return lines
