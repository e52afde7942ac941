"""The Textual app: owns the session, the live queries and the screens, and the actions available on every screen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, cast
from uuid import UUID

from textual import events, work
from textual.actions import ActionParseResult
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.dom import DOMNode
from textual.filter import LineFilter, Monochrome, NoColor
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Input
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from horsies.errors import HorsiesError
from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import FilterFault, TaskFilter, is_short_id, parse_filter
from horsies_ops.source import DataSource, Opener
from horsies_tui.data.context import AppContext, DatabaseClock, StateFile
from horsies_tui.data.queries import LiveQueries
from horsies_tui.data.session import ConnectionStatus, Session
from horsies_tui.format import sanitize
from horsies_tui.keys import (
    ACTIONS_BY_METHOD,
    KeyAction,
    KeyScope,
    ScreenId,
    SharedScope,
    actions_in,
    bindings,
    build_keymap,
    key_label,
)
from horsies_tui.screens import load_all, screen_class
from horsies_tui.screens.base import MainScreen, OpenTask, ShowRun, ShowTasks, ShowWorker
from horsies_tui.theme import DARK, LIGHT, NO_USER_THEMES, THEME_CYCLE, AsciiFilter, UserThemes
from horsies_tui.widgets.dialogs import HelpDialog, PromptDialog
from horsies_tui.widgets.frame import AppHeader

if TYPE_CHECKING:
    from horsies_tui.screens.tasks.screen import TasksScreen
    from horsies_tui.screens.workers import WorkersScreen
    from horsies_tui.screens.workflows import WorkflowsScreen

MIN_TERMINAL_SIZE: Final = Size(60, 15)
EXIT_ACTIONS: Final = frozenset({"app_quit", "quit", "leave"})
"""Actions that still work when the terminal is too small to show anything."""
REFRESH_INTERVALS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
BLURRED_REFRESH_S: Final = 5.0
"""Shortest refresh interval while the terminal window does not have the focus."""
GO_TO_ID: Final = "Go to id …"
GO_TO_ID_HELP: Final = "a task by id or short id (last 8 digits), or a workflow run by id"


class CommandProvider(Provider):
    """Palette entries: screens and ids to go to first, then actions without effect on the database, the others last."""

    @property
    def _app(self) -> HorsiesApp:
        return cast("HorsiesApp", self.app)

    def _commands(self) -> Iterable[SystemCommand]:
        yield SystemCommand(GO_TO_ID, GO_TO_ID_HELP, self._app.ask_for_id)
        yield from self._app.get_system_commands(self.screen)

    async def discover(self) -> Hits:
        for title, help_text, run, _ in self._commands():
            yield DiscoveryHit(title, run, help=help_text)

    async def search(self, query: str) -> Hits:
        typed, matcher = query.strip().lower(), self.matcher(query)
        if is_id(typed):
            yield Hit(1.0, f"Go to {typed}", partial(self._app.open_id, typed), help=GO_TO_ID_HELP)
        for title, help_text, run, _ in self._commands():
            if (score := matcher.match(title)) > 0:
                yield Hit(score, matcher.highlight(title), run, help=help_text)


class HorsiesApp(App[None]):
    """`horsies tui`. `opener` opens the data source: a database or the demo system."""

    TITLE = "horsies"
    CSS_PATH = "horsies.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SharedScope.APP)]
    COMMANDS: ClassVar = {CommandProvider}

    def __init__(
        self,
        opener: Opener,
        settings: TuiConfig,
        *,
        database_name: str,
        read_only: bool = False,
        start: ScreenId = ScreenId.DASHBOARD,
        clock: DatabaseClock | None = None,
        state_file: StateFile | None = None,
        themes: UserThemes = NO_USER_THEMES,
        caption_file: Path | None = None,
    ) -> None:
        super().__init__()
        self._keys = build_keymap(settings.keys)
        self._refresh_s = settings.refresh_ms / 1000
        self._start = start
        self._last_screen: ScreenId | None = None
        self._session_worker: Worker[None] | None = None
        self._can_enable_writes = not settings.read_only
        clock = clock or DatabaseClock()
        queries = LiveQueries(refresh_s=self._refresh_s)
        # Later: the session runs in a worker, which must not draw.
        show_connection = partial(self.call_later, self._show_connection)
        session = Session(opener, queries, clock, show_connection, read_only=read_only or settings.read_only)
        self.context = AppContext(
            queries=queries,
            session=session,
            clock=clock,
            settings=settings,
            database_name=database_name,
            state_file=state_file or StateFile(),
            caption_file=caption_file,
        )
        self._line_filters = [AsciiFilter()] if settings.ascii else []
        self._no_color = NoColor()
        self._theme_faults = themes.faults
        for theme in (DARK, LIGHT, *themes.themes):
            self.register_theme(theme)
        for screen_id in ScreenId:
            self.add_mode(screen_id, lambda screen_id=screen_id: screen_class(screen_id)(self.context))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, plus ours: they see every line of every widget before it is written."""
        filters = super().get_line_filters()
        if self.native_ansi_color:
            # Textual picks its filter for NO_COLOR before the theme is set. Monochrome makes the terminal's own
            # foreground and background both black.
            filters = [self._no_color if isinstance(used, Monochrome) else used for used in filters]
        return [*filters, *self._line_filters]

    def on_mount(self) -> None:
        self._apply_theme()
        self.set_keymap(self._keys)
        self.switch_mode(self._start)
        # Paint first: loading the driver and the other screens takes longer than drawing this one.
        self.call_after_refresh(self._connect)
        self.call_after_refresh(self.run_worker, load_all, group="load", thread=True, exit_on_error=False)

    def _apply_theme(self) -> None:
        """Set the configured theme; warn about invalid theme files and fall back to the dark theme."""
        name = self.context.settings.theme
        faults = list(self._theme_faults)
        if name not in self.available_themes:
            faults.append(f"unknown theme {name}, using {DARK.name}")
            name = DARK.name
        self.theme = name
        for fault in faults:
            self.notify(sanitize(fault), severity="warning", markup=False)
        # Subscribed afterwards, so that only a theme the user picks is saved.
        self.call_after_refresh(self.theme_changed_signal.subscribe, self, self._remember_theme)

    def _remember_theme(self, theme: Theme) -> None:
        self.context.state_file.update(theme=theme.name)

    def _connect(self) -> None:
        self._session_worker = self.run_worker(
            self.context.session.run(), group="session", description="connection", exit_on_error=False
        )

    async def on_unmount(self) -> None:
        """Close the connection even if the user quits during a query."""
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._session_worker is None:
            return
        self._session_worker.cancel()
        with contextlib.suppress(WorkerFailed, WorkerCancelled):
            await self._session_worker.wait()

    def _show_connection(self, connection: ConnectionStatus) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, MainScreen):
                screen.show_connection(connection)

    def on_app_blur(self, _: events.AppBlur) -> None:
        self.context.queries.refresh_s = max(self._refresh_s, BLURRED_REFRESH_S)

    def on_app_focus(self, _: events.AppFocus) -> None:
        self.context.queries.refresh_s = self._refresh_s
        self.context.queries.invalidate_all()

    @property
    def scope(self) -> KeyScope:
        """Whose keys work: those of the topmost main screen, below any dialogs."""
        screens = (screen for screen in reversed(self.screen_stack) if isinstance(screen, MainScreen))
        return next((screen.scope for screen in screens), SharedScope.APP)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        key_action = ACTIONS_BY_METHOD.get(action)
        if key_action is not None and key_action.opens_text_input and isinstance(self.focused, Input):
            return False  # these bindings have priority; in a text field their keys must stay text
        return super().check_action(action, parameters)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action. While the terminal is too small to show its target, only exit actions run."""
        name = action.partition("(")[0].rpartition(".")[2] if isinstance(action, str) else action[1]
        is_too_small = self.size.width < MIN_TERMINAL_SIZE.width or self.size.height < MIN_TERMINAL_SIZE.height
        if is_too_small and name not in EXIT_ACTIONS:
            return False
        return await super().run_action(action, default_namespace, namespaces)

    def action_go(self, screen_id: str) -> None:
        """Switch to a main screen and the details open on it; if already there, close its details.

        The previous screen is remembered for `-`.
        """
        if screen_id != self.current_mode:
            self._last_screen = ScreenId(self.current_mode)
            self.switch_mode(screen_id)
        else:
            self._close_details()

    def _close_details(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002  # Textual's signature
        """Screens to go to, actions of this screen and of the app, named filters and themes; changes last."""
        actions = (*actions_in(self.scope), *actions_in(SharedScope.APP))
        yield from (self._action_command(action) for action in actions if action.method == "go")
        yield from (self._action_command(action) for action in actions if action.method not in ("go", "op"))
        for name, text in self.context.settings.filters.items():
            yield SystemCommand(f"Filter {sanitize(name)}", sanitize(text), partial(self.filter_tasks, text))
        for name in self.available_themes:
            yield SystemCommand(f"Theme {name}", "switch colours", partial(setattr, self, "theme", name))
        yield from (self._action_command(action) for action in actions if action.mutates)

    def _action_command(self, action: KeyAction) -> SystemCommand:
        owner = self if SharedScope.APP in action.scopes else self.screen
        keys = " ".join(key_label(key) for key in action.keys)
        text = action.help_in(self.scope)
        title = text[:1].upper() + text[1:]
        # Later: the palette has to close first.
        return SystemCommand(title, f"key {keys}", partial(self.call_later, self.run_action, action.call, owner))

    def ask_for_id(self) -> None:
        self.push_screen(
            PromptDialog("Task or workflow run id. For a task, the last 8 digits are enough."), self.open_id
        )

    def open_id(self, id_text: str | None) -> None:
        """Show the task or workflow run with this id."""
        source = self.context.source
        if id_text and source is not None:
            self.run_worker(self._open_id(source, id_text), group="go", exclusive=True, exit_on_error=False)

    async def _open_id(self, source: DataSource, id_text: str) -> None:
        try:
            message = await resolve_id(source, id_text) if is_id(id_text) else None
        except HorsiesError as error:
            self.notify(sanitize(error.message), severity="error", markup=False)
            return
        if message is None:
            text = sanitize(f"no task or workflow run with id {id_text}", limit=100)
            self.notify(text, severity="warning", markup=False)
        else:
            self.post_message(message)

    def filter_tasks(self, text: str) -> None:
        """Show the tasks that match this filter text."""
        match parse_filter(text):
            case FilterFault() as fault:
                self.notify(sanitize(fault.message), severity="error", markup=False)
            case task_filter:
                self.post_message(ShowTasks(task_filter))

    def on_open_task(self, message: OpenTask) -> None:
        """Open the task detail on top of the current screen."""
        from horsies_tui.screens.tasks.detail import TaskDetailScreen

        screen = self.screen
        tab = screen.tab if isinstance(screen, MainScreen) else ScreenId.TASKS
        self.push_screen(TaskDetailScreen(self.context, message, tab=tab))

    def on_show_tasks(self, message: ShowTasks) -> None:
        self._show_on(ScreenId.TASKS, lambda screen: cast("TasksScreen", screen).apply_filter(message.filter))

    def on_show_run(self, message: ShowRun) -> None:
        self._show_on(ScreenId.WORKFLOWS, lambda screen: cast("WorkflowsScreen", screen).show_run(message.workflow_id))

    def on_show_worker(self, message: ShowWorker) -> None:
        self._show_on(ScreenId.WORKERS, lambda screen: cast("WorkersScreen", screen).show_worker(message.worker_id))

    def _show_on(self, screen_id: ScreenId, show: Callable[[MainScreen], object]) -> None:
        """Go to a main screen, close the details open on it, and call `show` once it is drawn."""
        self.action_go(screen_id)
        self._close_details()

        def show_if_on_top() -> None:
            # Compares ids, so that no screen class has to be imported.
            if isinstance(self.screen, MainScreen) and self.screen.scope is screen_id:
                show(self.screen)

        self.call_after_refresh(show_if_on_top)

    async def action_app_palette(self) -> None:
        """Open the palette and focus its input before the next key is handled."""
        if not isinstance(self.screen, CommandPalette):
            palette = CommandPalette(id="--command-palette")
            await self.push_screen(palette)
            palette.set_focus(palette.query_one(Input))

    def action_app_help(self) -> None:
        self.push_screen(HelpDialog(self.scope, self._keys))

    def action_app_quit(self) -> None:
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.exit()

    def action_app_back(self) -> None:
        screen = self.screen
        if isinstance(screen, MainScreen) and screen.step_back():
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.action_nav_last()

    def action_nav_last(self) -> None:
        if self._last_screen is not None:
            self.action_go(self._last_screen)

    def action_live_pause(self) -> None:
        queries = self.context.queries
        if queries.is_paused:
            queries.resume()
        else:
            queries.pause()
        if isinstance(self.screen, MainScreen):
            self.screen.query_one(AppHeader).refresh_if_changed()

    def action_live_refresh(self) -> None:
        self.context.session.retry_now()
        self.context.queries.refresh()

    def action_live_slower(self) -> None:
        self._set_refresh_interval(
            min((step for step in REFRESH_INTERVALS_S if step > self._refresh_s), default=REFRESH_INTERVALS_S[-1])
        )

    def action_live_faster(self) -> None:
        self._set_refresh_interval(
            max((step for step in REFRESH_INTERVALS_S if step < self._refresh_s), default=REFRESH_INTERVALS_S[0])
        )

    def _set_refresh_interval(self, interval_s: float) -> None:
        self._refresh_s = self.context.queries.refresh_s = interval_s
        self.notify(f"refreshing at most every {interval_s:g} s")

    def action_view_theme(self) -> None:
        index = THEME_CYCLE.index(self.theme) if self.theme in THEME_CYCLE else -1
        self.theme = THEME_CYCLE[(index + 1) % len(THEME_CYCLE)]

    def action_app_write(self) -> None:
        """Toggle read-only mode. Leaving it requires typing the database name."""
        if not self.context.is_read_only:
            self._reopen(read_only=True)
        elif not self._can_enable_writes:
            self.notify("read-only is set by tui.read_only in the settings", severity="warning")
        else:
            question = f"Type {self.context.database_name} to enable actions for this session."
            self.push_screen(PromptDialog(f"{question} Anything else, or Esc, goes back."), self._on_name_typed)

    def _on_name_typed(self, text: str | None) -> None:
        if text == self.context.database_name:
            self._reopen(read_only=False)

    @work(group="reopen", exclusive=True)
    async def _reopen(self, *, read_only: bool) -> None:
        """Reconnect: read-only is enforced by the database session, so the mode needs a new one."""
        await self._disconnect()
        self.context.session.read_only = read_only
        self._connect()


def is_id(text: str) -> bool:
    """Whether the text is a short id or a UUID."""
    if is_short_id(text):
        return True
    try:
        return bool(UUID(text))
    except ValueError:
        return False


async def resolve_id(source: DataSource, id_text: str) -> Message | None:
    """The message that shows the task or run with this id; None if there is none."""
    if is_short_id(id_text):
        found = await source.tasks_by_short_id(id_text)
        if len(found) > 1:
            return ShowTasks(TaskFilter(ids=(id_text,)))
        return OpenTask(found[0].id) if found else None
    full_id = UUID(id_text)
    if await source.tasks_by_id([full_id]):
        return OpenTask(full_id)
    return ShowRun(full_id) if await source.workflow(full_id) is not None else None
