"""A question that is answered with a line of text."""

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


class AskDialog(ModalScreen[str | None]):
    """Ends with what was typed, or with None where the question was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]

    def __init__(self, question: str, answer: str = "") -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def compose(self) -> ComposeResult:
        with Vertical(id="ask"):
            yield Static(safe(self._question))
            yield Input(self._answer, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)
