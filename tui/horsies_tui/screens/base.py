"""Base class of all screens: frame, live queries, connection notice, and the requests of screens to the app."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast
from uuid import UUID

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from horsies.errors import HorsiesError
from horsies_ops.reads.changes import Topic
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import Fetched, FetchFailed, LiveQuery
from horsies_tui.data.session import ConnectionState, ConnectionStatus
from horsies_tui.format import format_age, format_seconds, format_time, plural, safe, sanitize
from horsies_tui.keys import ACTIONS_BY_METHOD, KeyScope, ScreenId, bindings
from horsies_tui.system import copy_text
from horsies_tui.widgets.frame import AppHeader, KeyLine, ScreenTabs, StatusLine
from horsies_tui.widgets.page import Lines, Pane, failure_text
from horsies_tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from horsies_ops.reads.filters import TaskFilter
    from horsies_ops.reads.overview import Overview
    from horsies_ops.source import DataSource
    from horsies_tui.proposals.model import ProposalFactory
    from horsies_tui.screens.lists import ProposalRunner
    from horsies_tui.widgets.filter_bar import FilterBar

log = logging.getLogger("horsies.tui")

TASK_TOPICS = frozenset({Topic.STATUS_CHANGE, Topic.TASK_NEW, Topic.TASK_DONE})
"""Topics of changes to task rows."""

R = TypeVar("R")


NOTHING_MATCHES: Final = "Nothing matches the filter.\nEsc clears it"


# Requests to the app


@dataclass
class ShowTasks(Message):
    """Request: show the Tasks screen with this filter."""

    filter: TaskFilter


@dataclass
class OpenTask(Message):
    """Request: open the detail of a task. `sibling_ids` are the tasks of its list, for previous and next."""

    task_id: UUID
    sibling_ids: tuple[UUID, ...] = ()


@dataclass
class ShowRun(Message):
    """Request: show this workflow run."""

    workflow_id: UUID


@dataclass
class ShowWorker(Message):
    """Request: show this worker."""

    worker_id: UUID


class MainScreen(Screen[None]):
    """A screen with its keys: `class QueuesScreen(MainScreen, scope=ScreenId.QUEUES)`.

    A subclass implements `body` and `live_queries`.
    """

    scope: ClassVar[KeyScope]
    """The scope of its keys."""
    filter_bar: FilterBar[Any]
    """Set by screens with the action `filter.edit`."""
    proposals: ProposalRunner
    """Set by screens with actions `op.*`."""
    overview_min_interval_s: ClassVar[float] = 5.0
    """Shortest pause between two overview queries, which read the whole system."""
    AUTO_FOCUS = "RowList"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  # declared like this by Textual
        (0, "-too-narrow"),
        (60, "-narrow"),
        (80, "-medium"),
        (100, "-wide"),
        (140, "-widest"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-too-short"), (15, "-short"), (20, "-tall"), (30, "-high"), (44, "-highest")]  # noqa: RUF012

    def __init_subclass__(cls, *, scope: KeyScope | None = None, **options: Any) -> None:
        if scope is not None:
            cls.scope, cls.BINDINGS = scope, [*bindings(scope)]
        super().__init_subclass__(**options)

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self.context = context
        self.labels: dict[str, str] = {}
        """Labels in the key line by action id, where they depend on the row under the cursor."""
        self._could_act: bool | None = None
        """Whether actions were enabled when the key line was last drawn."""

    def compose(self) -> ComposeResult:
        yield Static("terminal too small, horsies needs 60 × 15", id="too-small")
        yield AppHeader(self.context)
        yield ScreenTabs(self.tab)
        yield Static("", id="caption")
        yield Static("", id="notice")
        yield from self.body()
        yield StatusLine()
        yield KeyLine(is_ascii=self.context.settings.ascii)

    @property
    def tab(self) -> ScreenId:
        """The tab to highlight; a detail screen highlights the list it was opened from."""
        return ScreenId(self.scope)

    def body(self) -> ComposeResult:
        """Yield the widgets between the tabs and the status line."""
        raise NotImplementedError

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        """Return the queries to run while this screen is visible."""
        raise NotImplementedError

    def step_back(self) -> bool:
        """Undo one step within the screen (Esc); False if there is nothing to undo."""
        return False

    def focus_list(self) -> None:
        """Move the focus to the main widget of the screen."""
        self.query(self.AUTO_FOCUS or "RowList").first().focus()

    def on_filter_bar_exited(self) -> None:
        self.focus_list()

    def action_filter_edit(self) -> None:
        self.filter_bar.edit()

    def action_filter_clear(self) -> None:
        self.filter_bar.clear()

    def proposal(self, verb: str) -> ProposalFactory | None:
        """Return what the action `op.VERB` proposes now; None if no row is selected."""
        raise NotImplementedError

    def action_op(self, verb: str) -> None:
        self.proposals.propose(self.proposal(verb))

    def action_plan_dry(self) -> None:
        """Preview what `R` would do."""
        self.proposals.dry_run(self.proposal("requeue"))

    def set_label(self, action_id: str, label: str) -> None:
        if self.labels.get(action_id) != label:
            self.labels[action_id] = label
            self.query_one(KeyLine).refresh()

    def set_status(self, *parts: str) -> None:
        self.query_one(StatusLine).parts = parts

    def show_pane(self, name: str, lines: Lines | Callable[[], Lines], *, title: str | None = None) -> None:
        """Show these lines in the pane with this id; a function that makes them may fail."""
        self.query_one(f"#{name}", Pane).show(lines, title=title)

    async def read(self, fetch: Callable[[DataSource], Awaitable[R]]) -> R | None:
        """Read once, outside the live queries; None, after a notice, if that fails."""
        source = self.context.source
        if source is None:
            self.notify("not connected", severity="warning")
            return None
        try:
            return await fetch(source)
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return None

    def copy_text(self, text: str, label: str) -> None:
        """Copy text to the operator's clipboard and show a toast."""
        copy_text(self, text, label)

    def start_queries(self) -> None:
        """Replace the running live queries by those of this screen."""
        # Every screen needs the overview: its tabs show the number of stale tasks.
        overview = LiveQuery(
            "overview",
            lambda source: source.overview(),
            self.show_overview,
            TASK_TOPICS,
            min_interval_s=self.overview_min_interval_s,
        )
        self.context.queries.set_queries([*self.live_queries(), overview], self.post_message)

    def on_mount(self) -> None:
        # Textual calls the on_mount of every class in the hierarchy, so subclasses do not call super().
        # The timer also runs while another tab or a dialog is on top.
        self.set_interval(1.0, lambda: self.tick() if self.is_current else None)
        if self.context.caption_file is not None:
            self.set_interval(1.0, self._show_caption)

    def _show_caption(self) -> None:
        if self.is_current and self.is_drawn and (text := self.context.read_caption()):
            caption = self.query_one("#caption", Static)
            caption.display = True
            caption.update(safe(f" {text}"))

    def on_screen_resume(self) -> None:
        # At once: shown by the timer only, it would push the rows down a second later.
        self._show_caption()
        self.start_queries()
        # The app reports connection changes only to the screens of the visible tab.
        self.show_connection(self.context.session.connection)

    @property
    def is_drawn(self) -> bool:
        """Whether the widgets exist: they are mounted after the screen and removed before it."""
        return bool(self.query(KeyLine))

    def on_fetched(self, message: Fetched) -> None:
        if not self.is_drawn:
            return
        self.query_one(AppHeader).as_of = self.context.clock.now()
        try:
            message.draw()
        except Exception as error:
            # What this query shows stays as it was; the rest of the screen is drawn by other queries.
            log.exception("result of the live query %s cannot be drawn", message.name)
            self.set_status(f"{message.name} {failure_text(error)}")

    def show_overview(self, overview: Overview) -> None:
        self.query_one(ScreenTabs).stale = overview.stale

    def on_fetch_failed(self, message: FetchFailed) -> None:
        self.context.session.report_error(message.error)
        # If the connection is down, the notice explains it and the status line stays.
        if self.context.session.connection.is_up and self.is_drawn:
            self.set_status(f"{message.name}: {message.error.message}", "r retries")

    def show_connection(self, connection: ConnectionStatus) -> None:
        """Show the connection state; while offline, dim the rows and explain why."""
        if not self.is_drawn:
            return
        self.query_one(AppHeader).refresh_if_changed()
        is_offline = connection.state in (ConnectionState.LOST, ConnectionState.REFUSED)
        self.set_class(is_offline, "-offline")
        self.query_one("#notice", Static).update(
            _connection_notice(connection, self.context.clock.now()) if is_offline else ""
        )
        # Most new states leave the keys as they are, so the key line need not be redrawn.
        if self.context.can_act != self._could_act:
            self._could_act = self.context.can_act
            self.refresh_bindings()

    def tick(self) -> None:
        """Redraw ages; called once a second while this screen is visible."""
        for row_list in cast("Iterable[RowList[Any]]", self.query(RowList)):
            row_list.tick()

    def on_key(self, event: events.Key) -> None:
        """Say why the key of an action that changes the database does nothing; Textual ignores disabled keys."""
        if self.context.can_act or isinstance(self.focused, Input):
            return
        disabled = [entry for key, entry in self.active_bindings.items() if key == event.key and not entry.enabled]
        if disabled:
            reason = "read-only; ! enables actions" if self.context.is_read_only else "not connected"
            self.notify(f"cannot {disabled[0].binding.description}: {reason}", severity="warning", markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = ACTIONS_BY_METHOD.get(action)
        if known is not None and known.mutates and not self.context.can_act:
            # None greys the key out in the key line; False would hide it.
            return None
        if known is not None and known.opens_text_input and isinstance(self.focused, Input):
            # Its key has priority over the input, where it must be a character like any other.
            return False
        return super().check_action(action, parameters)


def _connection_notice(connection: ConnectionStatus, now: datetime) -> Content:
    """Describe the failure, what to do about it and when the next attempt is."""
    retrying = f"retrying in {format_seconds(connection.retry_in)}" if connection.retry_in else "retrying"
    attempts = f"{retrying}, {plural(connection.failed_tries, 'attempt')} failed; r retries now"
    if connection.state is ConnectionState.REFUSED:
        lines = [connection.reason, *filter(None, [connection.hint]), "r checks again, q quits"]
    elif not connection.has_been_up:
        lines = [f"Cannot connect: {connection.reason}", attempts]
    else:
        age = format_age(now - connection.lost_since) if connection.lost_since else "some time"
        lost = f"Connection lost {format_time(connection.lost_since)}, {age} ago: {connection.reason}"
        lines = [lost, f"Rows may be out of date, actions are disabled; {attempts}"]
    return Content("\n").join([safe(line) for line in lines])
