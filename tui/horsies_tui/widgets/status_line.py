"""The two lines below every screen: the state of the list, and the keys that can be used now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from horsies_tui.actions import ACTIONS
from horsies_tui.format import cut, safe
from horsies_tui.keymap import shown_key

if TYPE_CHECKING:
    from textual.binding import ActiveBinding
    from textual.screen import Screen

    from horsies_tui.glyphs import Glyphs

HELP: Final = "app.help"


class StatusLine(Widget):
    """What there is to say about the list: parts joined by dots, the last ones left out where there is no room."""

    parts: reactive[tuple[str, ...]] = reactive(())

    def render(self) -> Content:
        return safe(cut(" " + " · ".join(part for part in self.parts if part), self.size.width))


class KeyLine(Widget):
    """The keys of the place, from the table of actions; an action that cannot be had now is dim."""

    def __init__(self, signs: Glyphs) -> None:
        super().__init__()
        self._signs = signs

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._updated)

    def _updated(self, _: Screen[object]) -> None:
        self.refresh()

    def render(self) -> Content:
        # Of several keys of an action the first is shown.
        active = {each.binding.id: (key, each) for key, each in reversed(self.screen.active_bindings.items())}
        offered = [action.id for action in ACTIONS if action.is_shown and action.id in active]
        shown = {action_id: self._entry(*active[action_id]) for action_id in offered}
        # Whatever else there is no room for, the way to all of them is shown.
        help_entry = shown.pop(HELP, Content(""))
        line = Content(" ")
        for entry in shown.values():
            if line.cell_length + entry.cell_length + help_entry.cell_length + 3 <= self.size.width:
                line = line + entry + Content("  ")
        return line + help_entry

    def _entry(self, key: str, active: ActiveBinding) -> Content:
        shown, label = shown_key(key, self._signs), active.binding.description
        if not active.enabled:
            return Content.styled(f"{shown} {label}", "dim")
        return Content.assemble((shown, "bold $text-accent"), f" {label}")
