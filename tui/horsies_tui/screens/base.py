"""What the main screens share: header, tabs, status and keys, asking the store, saying when there is no connection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from horsies_ops.reads.changes import Topic
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.data.session import ConnectionState, ConnectionStatus
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, format_seconds, format_time, plural, safe
from horsies_tui.keys import ACTIONS_BY_METHOD, TABS, Place
from horsies_tui.messages import Fetched, FetchFailed
from horsies_tui.system import copy_text
from horsies_tui.widgets.frame import AppHeader, KeyLine, ScreenTabs, StatusLine

if TYPE_CHECKING:
    from horsies_ops.reads.overview import Overview

TASK_TOPICS = frozenset({Topic.STATUS_CHANGE, Topic.TASK_NEW, Topic.TASK_DONE})
"""The changes that move tasks."""

OVERVIEW = "overview"


async def _overview(source: DataSource) -> Overview:
    return await source.overview()


class MainScreen(Screen[None]):
    """A tab. A subclass names its `place`, composes its `body`, says what it `wants` and shows it in `take`."""

    place: ClassVar[Place]
    overview_min_interval_s: ClassVar[float] = 5.0
    """How often the whole system is looked at, at most."""
    AUTO_FOCUS = "RowList"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  # Textual has it so
        (0, "-too-narrow"),
        (60, "-narrow"),
        (80, "-medium"),
        (100, "-wide"),
        (140, "-widest"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-too-short"), (15, "-short"), (20, "-tall")]  # noqa: RUF012  # the same

    def __init__(self, context: AppContext, tabs: frozenset[Place] = frozenset(TABS)) -> None:
        super().__init__()
        self.context = context
        self._tabs = tabs
        self._could_act: bool | None = None
        """Whether actions were to be had when the keys were last drawn."""

    def compose(self) -> ComposeResult:
        yield Static("horsies needs 60 × 15 characters", id="too-small")
        yield AppHeader(self.context)
        yield ScreenTabs(self.tab, self._tabs)
        yield Static("", id="notice")
        yield from self.body()
        yield StatusLine()
        yield KeyLine(self.context.glyphs)

    @property
    def tab(self) -> Place:
        """Under which of the tabs it is; a detail is under that of the list it was opened from."""
        return self.place

    def body(self) -> ComposeResult:
        """The widgets between tabs and status line."""
        raise NotImplementedError

    def live_queries(self) -> Sequence[LiveQuery]:
        """What is to be fetched for as long as this screen is seen."""
        raise NotImplementedError

    def show_result(self, name: str, value: object) -> None:
        """Show what was wanted under `name`."""
        raise NotImplementedError

    def step_back(self) -> bool:
        """Go one step back within the screen; False where there is none to go."""
        return False

    def set_status(self, *parts: str) -> None:
        """What the status line shows."""
        self.query_one(StatusLine).parts = parts

    def copy_text(self, text: str, what: str) -> None:
        """To the clipboard of whoever sits there, and say so."""
        copy_text(self, text, what)

    def start_queries(self) -> None:
        """Have everything that the screen wants fetched, from now on."""
        # The number of stale tasks stands in the tabs of every screen.
        overview = LiveQuery(
            name=OVERVIEW, fetch=_overview, invalidated_by=TASK_TOPICS, min_interval_s=self.overview_min_interval_s
        )
        self.context.queries.set_queries([*self.live_queries(), overview], self.post_message)

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)

    def on_screen_resume(self) -> None:
        self.start_queries()
        self.show_connection(self.context.session.connection)

    @property
    def is_drawn(self) -> bool:
        """Whether the widgets are there: they come after the screen, and go before it."""
        return bool(self.query(KeyLine))

    def on_fetched(self, message: Fetched) -> None:
        if not self.is_drawn:
            return
        if message.name == OVERVIEW:
            self.query_one(ScreenTabs).stale = cast("Overview", message.value).stale
        self.query_one(AppHeader).as_of = self.context.clock.now()
        self.show_result(message.name, message.value)

    def on_fetch_failed(self, message: FetchFailed) -> None:
        self.context.session.report_error(message.error)
        if self.context.session.connection.is_up and self.is_drawn:
            self.set_status(f"{message.name}: {message.error.message}", "r tries again")

    def show_connection(self, connection: ConnectionStatus) -> None:
        """Say how the connection stands: rows are dimmed while they may be old."""
        if not self.is_drawn:
            return
        self.query_one(AppHeader).refresh_if_changed()
        is_away = connection.state in (ConnectionState.LOST, ConnectionState.REFUSED)
        self.set_class(is_away, "-offline")
        self.query_one("#notice", Static).update(
            _connection_notice(connection, self.context.clock.now()) if is_away else ""
        )
        if self.context.can_act != self._could_act:
            self._could_act = self.context.can_act
            self.refresh_bindings()

    def _tick(self) -> None:
        """Once a second, while this is the screen that is seen."""
        if self.is_current:
            self.tick()

    def tick(self) -> None:
        """Bring up to date what changes with time alone."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = ACTIONS_BY_METHOD.get(action)
        if known is not None and known.mutates and not self.context.can_act:
            return None
        if known is not None and known.opens_text_input and isinstance(self.focused, Input):
            return False
        return super().check_action(action, parameters)


def _connection_notice(connection: ConnectionStatus, now: datetime) -> Content:
    """What is wrong, what can be done about it, and when it is tried again."""
    lines = _refused_lines(connection) if connection.state is ConnectionState.REFUSED else _lost_lines(connection, now)
    return Content("\n").join([safe(f" {line}") for line in lines])


def _refused_lines(connection: ConnectionStatus) -> list[str]:
    return [connection.reason, *filter(None, [connection.hint]), "r looks again, q leaves"]


def _lost_lines(connection: ConnectionStatus, now: datetime) -> list[str]:
    soon = f"trying again in {format_seconds(connection.retry_in)}" if connection.retry_in else "trying again"
    tries = f"{soon}, {plural(connection.failed_tries, 'attempt')} failed; r tries now"
    if not connection.has_been_up:
        return [f"Cannot connect: {connection.reason}", tries]
    away = format_age(now - connection.lost_since) if connection.lost_since else "some time"
    lost = f"Connection lost {format_time(connection.lost_since)}, {away} ago: {connection.reason}"
    return [lost, f"Rows may be old, actions are off; {tries}"]
