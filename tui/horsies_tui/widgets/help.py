"""The help page of a place, from the table of actions: what it lists is what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from horsies_tui.actions import RULES, TABS, Action, Place, actions_at
from horsies_tui.format import fit, safe
from horsies_tui.glyphs import UNICODE, Glyphs
from horsies_tui.keymap import shown_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


class Help(ModalScreen[None]):
    """The three rules, then the keys of the place, of lists, and of everywhere."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1,enter", "leave", "close")]

    def __init__(self, place: Place, keymap: Mapping[str, str], signs: Glyphs) -> None:
        super().__init__()
        self._place = place
        self._keymap = keymap
        self._signs = signs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(page(self._place, self._keymap, self._signs))

    def on_mount(self) -> None:
        self.query_one("#help").border_title = f"Keys of {TABS.get(self._place, self._place)}"

    def action_leave(self) -> None:
        self.dismiss(None)


def page(place: Place, keymap: Mapping[str, str], signs: Glyphs = UNICODE) -> Content:
    """The whole page as text; keys that the user has changed are shown as they are now."""
    rules = [Content.styled(f"• {rule}", "$text-muted") for rule in RULES]
    parts = {TABS.get(place, place.capitalize()): place, "Lists": Place.LIST, "Everywhere": Place.APP}
    keys = [line for title, where in parts.items() for line in _part(title, actions_at(where), keymap, signs)]
    return Content("\n").join([*rules, *keys])


def _part(title: str, actions: Sequence[Action], keymap: Mapping[str, str], signs: Glyphs) -> list[Content]:
    lines = [Content(""), Content.styled(title, "bold")]
    for action in actions:
        changed = keymap.get(action.id)
        keys = action.keys if changed is None else tuple(filter(None, changed.split(",")))
        shown = fit(" ".join(shown_key(key, signs) for key in keys) or "(off)", 9)
        lines.append(
            Content.assemble(
                ("  " + shown, "bold $text-accent"), (fit(action.id, 14), "$text-muted"), safe(action.help)
            )
        )
    return lines
