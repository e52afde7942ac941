"""A question that is answered with a line of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from horsies_tui.format import fit, safe
from horsies_tui.keys import KEY_RULES, TABS, KeyAction, Place, actions_at, key_label
from horsies_tui.theme import UNICODE, Glyphs


class PromptDialog(ModalScreen[str | None]):
    """Ends with what was typed, or with None where the question was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]

    def __init__(self, question: str, default: str = "") -> None:
        super().__init__()
        self._question = question
        self._answer = default

    def compose(self) -> ComposeResult:
        with Vertical(id="prompt"):
            yield Static(safe(self._question))
            yield Input(self._answer, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)


# A question that a single key cannot answer: a name must be typed.


class TypedConfirmDialog(ModalScreen[bool]):
    """Ends with True only where exactly `to_type` was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]

    def __init__(self, confirmation_text: str, purpose: str) -> None:
        super().__init__()
        self._to_type = confirmation_text
        self._what = purpose

    def compose(self) -> ComposeResult:
        with Vertical(id="typed-confirm"):
            yield Static(
                safe(f"Type {self._to_type} {self._what}. Enter with anything else, or Esc, leaves it as it is.")
            )
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() == self._to_type)

    def action_leave(self) -> None:
        self.dismiss(False)  # noqa: FBT003  # the answer


# Choosing the column that a list is sorted by.

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOrder:
    """By which column a list is sorted, and which way round."""

    column: str
    is_descending: bool = True

    def with_column(self, by: str) -> SortOrder:
        """Another column; the same one again the other way round."""
        return SortOrder(column=by, is_descending=not self.is_descending if by == self.column else True)

    def sort(self, rows: Sequence[T], keys: Mapping[str, Callable[[T], Any]]) -> list[T]:
        """Rows that are equal in that column keep their order."""
        return sorted(rows, key=keys[self.column], reverse=self.is_descending)

    def __str__(self) -> str:
        return f"sorted by {self.column} {'descending' if self.is_descending else 'ascending'}"


class SortPicker(ModalScreen[str | None]):
    """Ends with the name of a column, or None. The key that opened it picks the present one, which turns it round."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "reverse", "reverse"),
        Binding("escape,q", "leave", "close"),
    ]

    def __init__(self, names: Sequence[str], current: str) -> None:
        super().__init__()
        self._names = names
        self._present = current

    def compose(self) -> ComposeResult:
        with Vertical(id="sort"):
            yield OptionList(*(Option(name, id=name) for name in self._names), compact=True, markup=False)
            yield Static("Enter sorts   s turns round   Esc closes")

    def on_mount(self) -> None:
        self.query_one("#sort").border_title = "Sort by"
        self.query_one(OptionList).highlighted = list(self._names).index(self._present)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_reverse(self) -> None:
        self.dismiss(self._present)

    def action_leave(self) -> None:
        self.dismiss(None)


# The help page of a place, from the table of actions: what it lists is what there is.


class HelpDialog(ModalScreen[None]):
    """The three rules, then the keys of the place, of lists, and of everywhere."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1,enter", "leave", "close")]

    def __init__(self, place: Place, keymap: Mapping[str, str], glyphs: Glyphs) -> None:
        super().__init__()
        self._place = place
        self._keymap = keymap
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(help_content(self._place, self._keymap, self._glyphs))

    def on_mount(self) -> None:
        self.query_one("#help").border_title = f"Keys of {TABS.get(self._place, self._place)}"

    def action_leave(self) -> None:
        self.dismiss(None)


def help_content(place: Place, keymap: Mapping[str, str], glyphs: Glyphs = UNICODE) -> Content:
    """The whole page as text; keys that the user has changed are shown as they are now."""
    rules = [Content.styled(f"• {rule}", "$text-muted") for rule in KEY_RULES]
    parts = {TABS.get(place, place.capitalize()): place, "Lists": Place.LIST, "Everywhere": Place.APP}
    keys = [line for title, where in parts.items() for line in _part(title, actions_at(where), keymap, glyphs)]
    return Content("\n").join([*rules, *keys])


def _part(title: str, actions: Sequence[KeyAction], keymap: Mapping[str, str], glyphs: Glyphs) -> list[Content]:
    lines = [Content(""), Content.styled(title, "bold")]
    for action in actions:
        changed = keymap.get(action.id)
        keys = action.keys if changed is None else tuple(filter(None, changed.split(",")))
        shown = fit(" ".join(key_label(key, glyphs) for key in keys) or "(off)", 9)
        lines.append(
            Content.assemble(
                ("  " + shown, "bold $text-accent"), (fit(action.id, 14), "$text-muted"), safe(action.help)
            )
        )
    return lines
