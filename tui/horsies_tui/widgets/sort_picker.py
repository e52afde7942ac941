"""Choosing the column that a list is sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """By which column a list is sorted, and which way round."""

    by: str
    is_descending: bool = True

    def picked(self, by: str) -> Order:
        """Another column; the same one again the other way round."""
        return Order(by=by, is_descending=not self.is_descending if by == self.by else True)

    def sort(self, rows: Sequence[T], keys: Mapping[str, Callable[[T], Any]]) -> list[T]:
        """Rows that are equal in that column keep their order."""
        return sorted(rows, key=keys[self.by], reverse=self.is_descending)

    def __str__(self) -> str:
        return f"sorted by {self.by} {'descending' if self.is_descending else 'ascending'}"


class SortPicker(ModalScreen[str | None]):
    """Ends with the name of a column, or None. The key that opened it picks the present one, which turns it round."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "again", "reverse"),
        Binding("escape,q", "leave", "close"),
    ]

    def __init__(self, names: Sequence[str], present: str) -> None:
        super().__init__()
        self._names = names
        self._present = present

    def compose(self) -> ComposeResult:
        with Vertical(id="sort"):
            yield OptionList(*(Option(name, id=name) for name in self._names), compact=True, markup=False)
            yield Static("Enter sorts   s turns round   Esc closes")

    def on_mount(self) -> None:
        self.query_one("#sort").border_title = "Sort by"
        self.query_one(OptionList).highlighted = list(self._names).index(self._present)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_again(self) -> None:
        self.dismiss(self._present)

    def action_leave(self) -> None:
        self.dismiss(None)
