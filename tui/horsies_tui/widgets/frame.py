"""The lines around every screen: header and tabs above, status line and keys below."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from textual import events
from textual.binding import ActiveBinding
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from horsies_tui.data.context import AppContext
from horsies_tui.data.session import connection_text
from horsies_tui.format import format_time, safe, sanitize, truncate, truncate_start
from horsies_tui.keys import ACTIONS, ScreenId, key_label, scope_title
from horsies_tui.theme import Glyph

MIN_NAME_WIDTH: Final = 12
"""Columns reserved for the database name."""
HELP_ACTION: Final = "app.help"


class AppHeader(Widget):
    """`horsies  prod  db1/app   ● LIVE 12ms …  RW  12:04Z`; the time is that of the newest data.

    Without seconds, so that a result without changes causes no repaint.
    """

    as_of: reactive[datetime | None] = reactive(None, repaint=False)

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self._app_context = context
        self._rendered: Content | None = None

    def watch_as_of(self) -> None:
        self.refresh_if_changed()

    def refresh_if_changed(self) -> None:
        rendered = self._rendered
        if rendered is None or not self._line().is_same(rendered):
            self.refresh()

    def on_mount(self) -> None:
        self.set_class(self._app_context.settings.env.lower().startswith("prod"), "-production")

    def render(self) -> Content:
        self._rendered = self._line()
        return self._rendered

    def _line(self) -> Content:
        env = self._app_context.settings.env
        environment = Content.assemble(safe(env, "bold"), "  ") if env else Content("")
        before = Content.assemble(" ", ("horsies", "bold"), "  ", environment)
        after = Content.assemble("   ", self._state())
        right = Content.assemble(self._access_mode(), f"   {format_time(self.as_of)[:-3]}Z ")
        room = self.size.width - right.cell_length
        # The connection status must stay visible, so the database name is cut.
        name = truncate_start(
            sanitize(self._app_context.database_name),
            max(room - before.cell_length - after.cell_length - 1, MIN_NAME_WIDTH),
        )
        left = before + safe(name) + after
        return left.truncate(room - 1, ellipsis=True).pad_right(max(room - left.cell_length, 1)) + right

    def _state(self) -> Content:
        queries, connection = self._app_context.queries, self._app_context.session.connection
        if queries.is_paused and connection.is_up:
            return Content.styled(f"{Glyph.PAUSED} PAUSED {queries.pending_changes:,}", "$text-warning")
        colour = "$text-success" if connection.is_up and not connection.is_slow else "$text-warning"
        return Content.styled(connection_text(connection, poll_s=queries.refresh_s), colour)

    def _access_mode(self) -> Content:
        if not self._app_context.session.connection.is_up:
            return Content("--")
        return Content.styled("RO", "bold $text-accent") if self._app_context.is_read_only else Content("RW")


class ScreenTabs(Widget):
    """The main screens by number; the current one in brackets."""

    stale: reactive[int] = reactive(0)

    def __init__(self, active: ScreenId) -> None:
        super().__init__()
        self._active = active

    def render(self) -> Content:
        if self.size.width < 72:
            number = list(ScreenId).index(self._active) + 1
            return Content(f" {number}/{len(ScreenId)} {scope_title(self._active)}")
        return Content(" ").join([Content(""), *(self._tab(number, tab) for number, tab in enumerate(ScreenId, 1))])

    def _tab(self, number: int, screen_id: ScreenId) -> Content:
        count = f"({self.stale})" if screen_id is ScreenId.STALE and self.stale else ""
        tab = Content.assemble((f"{number}", "$text-accent"), scope_title(screen_id), (count, "bold $text-error"))
        return Content("[").append(tab).append("]").stylize("bold") if screen_id is self._active else tab

    async def on_click(self, event: events.Click) -> None:
        # `render` puts one space before each tab.
        x = 1
        for number, screen_id in enumerate(ScreenId, 1):
            width = self._tab(number, screen_id).cell_length
            if x <= event.x < x + width:
                await self.run_action(f"app.go('{screen_id}')")
            x += width + 1


class StatusLine(Widget):
    """The state of the list: parts joined by dots, cut at the end of the line."""

    parts: reactive[tuple[str, ...]] = reactive(())

    def render(self) -> Content:
        return safe(truncate(" " + " · ".join(part for part in self.parts if part), self.size.width))


class KeyLine(Widget):
    """The keys of the screen, from the table of actions; disabled actions are dim."""

    def __init__(self, *, is_ascii: bool) -> None:
        super().__init__()
        self._is_ascii = is_ascii

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._updated)

    def _updated(self, _: Screen[object]) -> None:
        self.refresh()

    def render(self) -> Content:
        # Reversed, so that of several keys of an action the first one stays.
        active = {entry.binding.id: (key, entry) for key, entry in reversed(self.screen.active_bindings.items())}
        in_footer = [action.id for action in ACTIONS if action.label and action.id in active]
        entries = {action_id: self._entry(*active[action_id]) for action_id in in_footer}
        # The help key is always shown: it leads to all the others.
        help_entry = entries.pop(HELP_ACTION, Content(""))
        line = Content(" ")
        for entry in entries.values():
            if line.cell_length + entry.cell_length + help_entry.cell_length + 3 <= self.size.width:
                line = line + entry + Content("  ")
        return line + help_entry

    def _entry(self, key: str, active: ActiveBinding) -> Content:
        labels: Mapping[str, str] = getattr(self.screen, "labels", {})
        key_text, label = key_label(key), labels.get(active.binding.id or "", active.binding.description)
        if key == "enter":
            # The ASCII filter cannot lengthen text, and its replacement of this glyph would not look like a key.
            key_text = "Ent" if self._is_ascii else Glyph.ENTER
        if not active.enabled:
            return Content.styled(f"{key_text} {label}", "dim")
        return Content.assemble((key_text, "bold $text-accent"), f" {label}")
