"""The two lines above every screen: which database, how the connection stands, what may be done; and the tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from horsies_tui.data.session import described
from horsies_tui.format import clean, clock, cut, end_of, safe
from horsies_tui.keys import ACTIONS, TABS, Place, shown_key

if TYPE_CHECKING:
    from datetime import datetime

    from textual import events
    from textual.binding import ActiveBinding
    from textual.screen import Screen

    from horsies_tui.data.context import Desk
    from horsies_tui.theme import Glyphs


SHORTEST: Final = 12
"""So many columns the name of the database has in any case."""


class Header(Widget):
    """`horsies  prod  db1/app   ● LIVE 12ms …  RW  12:04Z`; the time is that of the newest data.

    It has no seconds, for then every answer would be painted, also one by which nothing has changed.
    """

    as_of: reactive[datetime | None] = reactive(None, repaint=False)

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self._painted: Content | None = None

    def watch_as_of(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Paint it anew, unless it would look as it does."""
        painted = self._painted
        if painted is None or not self._line().is_same(painted):
            self.refresh()

    def on_mount(self) -> None:
        self.set_class(self._desk.settings.env.lower().startswith("prod"), "-production")

    def render(self) -> Content:
        self._painted = self._line()
        return self._painted

    def _line(self) -> Content:
        before = Content.assemble(" ", ("horsies", "bold"), "  ", self._environment())
        after = Content.assemble("   ", self._state())
        right = Content.assemble(self._rights(), f"   {clock(self.as_of)[:-3]}Z ")
        room = self.size.width - right.cell_length
        # How the connection stands must be seen, however long the name of the database is.
        name = end_of(clean(self._desk.database), max(room - before.cell_length - after.cell_length - 1, SHORTEST))
        left = before + safe(name) + after
        return left.truncate(room - 1, ellipsis=True).pad_right(max(room - left.cell_length, 1)) + right

    def _environment(self) -> Content:
        env = self._desk.settings.env
        return Content.assemble(safe(env, "bold"), "  ") if env else Content("")

    def _state(self) -> Content:
        desk, connection = self._desk, self._desk.session.connection
        if desk.store.is_paused and connection.is_up:
            return Content.styled(f"{desk.glyphs.paused} PAUSED {desk.store.waiting:,}", "$text-warning")
        tone = "$text-success" if connection.is_up and not connection.is_slow else "$text-warning"
        return Content.styled(described(connection, desk.glyphs, poll_s=desk.store.tick_s), tone)

    def _rights(self) -> Content:
        if not self._desk.session.connection.is_up:
            return Content("--")
        return Content.styled("RO", "bold $text-accent") if self._desk.is_read_only else Content("RW")


class Tabs(Widget):
    """The main screens by number; the one that is seen stands in brackets, those that this build lacks are dim."""

    stale: reactive[int] = reactive(0)

    def __init__(self, here: Place, available: frozenset[Place]) -> None:
        super().__init__()
        self._here = here
        self._available = available

    def render(self) -> Content:
        if self.size.width < 72:
            number = list(TABS).index(self._here) + 1
            return Content(f" {number}/{len(TABS)} {TABS[self._here]}")
        return Content(" ").join([Content(""), *(self._tab(number, place) for number, place in enumerate(TABS, 1))])

    def _tab(self, number: int, place: Place) -> Content:
        count = f"({self.stale})" if place is Place.STALE and self.stale else ""
        title = f"{number}{TABS[place]}{count}"
        if place is self._here:
            return Content.styled(f"[{title}]", "bold")
        return Content.styled(title, "" if place in self._available else "dim")

    async def on_click(self, event: events.Click) -> None:
        at = 1
        for number, place in enumerate(TABS, 1):
            width = self._tab(number, place).cell_length
            if at <= event.x < at + width and place in self._available:
                await self.run_action(f"app.go('{place}')")
            at += width + 1


# The two lines below every screen: the state of the list, and the keys that can be used now.

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
