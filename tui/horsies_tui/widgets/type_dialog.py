"""A question that a single key cannot answer: a name must be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from horsies_tui.format import safe

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class TypeDialog(ModalScreen[bool]):
    """Ends with True only where exactly `to_type` was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]

    def __init__(self, to_type: str, what: str) -> None:
        super().__init__()
        self._to_type = to_type
        self._what = what

    def compose(self) -> ComposeResult:
        with Vertical(id="type"):
            yield Static(
                safe(f"Type {self._to_type} {self._what}. Enter with anything else, or Esc, leaves it as it is.")
            )
            yield Input(compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() == self._to_type)

    def action_leave(self) -> None:
        self.dismiss(False)  # noqa: FBT003  # the answer
