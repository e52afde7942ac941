"""Start `horsies tui` in the terminal or, with `--serve`, in browsers."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import select
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from horsies.config import LoadedSettings, Precedence
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.log import configure_logging
from horsies.model.settings.broker import DatabaseUrl
from horsies_ops.source import DataSource

if TYPE_CHECKING:
    from horsies_tui.app import HorsiesApp

READ_TIMEOUT_S: Final = 3.0
"""Timeout of queries for screens. Actions use the toolkit's own timeouts."""
MAX_CONNECTIONS: Final = 3
"""Screens run several queries at once; the workers need the server's connections more."""
SLOW_TERMINAL_ENV: Final = {"TEXTUAL_FPS": "15", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
SLOW_REFRESH_MS: Final = 1000
GC_THRESHOLD: Final = 50_000
"""Allocations between two garbage collections."""
WEB_DRIVER: Final = "textual.drivers.web_driver:WebDriver"
PARENT_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Command line options that are not settings."""

    actor: str | None = None
    is_read_only: bool = False
    is_slow: bool = False
    has_mouse: bool = True
    log_file: Path | None = None
    caption_file: Path | None = None
    """A line of text to show below the tabs, in which `{age}` is the age of the file; written by `horsies demo`."""
    add_connection_options: Callable[[str], str] = str
    """Adds the current connection options to the command in a hint, so that it runs against the same database."""

    @property
    def cli_arguments(self) -> list[str]:
        """These options as arguments of `horsies tui`, for the processes of the web server."""
        flags = {
            "--read-only": self.is_read_only,
            "--slow": self.is_slow,
            "--no-mouse": not self.has_mouse,
        }
        options = {
            "--as": self.actor,
            "--log-file": self.log_file and str(self.log_file.absolute()),
            "--caption-file": self.caption_file and str(self.caption_file.absolute()),
        }
        with_values = [argument for name, value in options.items() if value for argument in (name, value)]
        return [*(flag for flag, is_set in flags.items() if is_set), *with_values]


@dataclass(frozen=True, slots=True)
class DatabaseOpener:
    """Opens the configured database as the data source of the screens."""

    settings: LoadedSettings
    options: LaunchOptions

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        # Imported in a thread: the operations toolkit loads slowly and must not delay the first paint.
        await asyncio.to_thread(importlib.import_module, "horsies_ops.ops")
        from horsies_ops.ops import open_ops

        async with open_ops(
            self.settings.app,
            read_only=read_only,
            actor=self.options.actor,
            via="tui",
            read_timeout_s=READ_TIMEOUT_S,
            connections=MAX_CONNECTIONS,
            application_name="horsies-tui",
        ) as ops:
            try:
                await ops.require_current_schema()
            except HorsiesError as error:
                error.help_text = self.options.add_connection_options(error.help_text or "")
                raise
            yield ops


def launch(settings: LoadedSettings, options: LaunchOptions) -> int:
    """Run the TUI until the user quits; returns the exit code."""
    # Imports allocate many long-lived objects; collecting them would be a tenth of the time to first paint.
    gc.set_threshold(GC_THRESHOLD)
    if is_web_child():
        exit_when_server_exits()
    elif sys.stdin.isatty():
        exit_when_terminal_closes(sys.stdin.fileno())
    if options.is_slow:
        # Textual reads these when it is imported.
        os.environ.update(SLOW_TERMINAL_ENV)
    # Logging to stderr would overwrite the screen.
    with (options.log_file or Path(os.devnull)).open("a", encoding="utf-8") as log:
        configure_logging(settings.log.level, settings.log.format, statements=settings.log.statements, stream=log)
        app = build_app(settings, options)
        app.run(mouse=options.has_mouse)
    return app.return_code or 0


def serve_in_browser(options: LaunchOptions, *, host: str, port: int, on_ready: Callable[[str], None]) -> int:
    """Serve the TUI to browsers until stopped; `on_ready` gets the URL. The app processes inherit the environment."""
    if importlib.util.find_spec("textual_serve") is None:
        raise ConfigurationError(
            "horsies tui --serve requires the package textual-serve",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="pip install 'horsies-ops[web]'",
        )
    from horsies_tui.web import serve

    serve(options.cli_arguments, host=host, port=port, on_ready=on_ready)
    return 0


def build_app(settings: LoadedSettings, options: LaunchOptions) -> HorsiesApp:
    """Create the app for these settings."""
    from horsies_tui.app import HorsiesApp
    from horsies_tui.data.context import StateFile, default_state_path
    from horsies_tui.theme import default_themes_folder, load_user_themes

    tui = settings.tui
    if options.is_slow:
        tui = tui.model_copy(update={"refresh_ms": max(tui.refresh_ms, SLOW_REFRESH_MS)})
    state_file = StateFile(default_state_path())
    saved_theme = state_file.state.theme
    if saved_theme is not None and settings.origin_of(("tui", "theme")).precedence is Precedence.DEFAULT:
        tui = tui.model_copy(update={"theme": saved_theme})
    return HorsiesApp(
        DatabaseOpener(settings, options),
        tui,
        database_name=database_name(settings.app.broker.database_url),
        read_only=options.is_read_only,
        state_file=state_file,
        themes=load_user_themes(default_themes_folder()),
        caption_file=options.caption_file,
    )


def database_name(url: DatabaseUrl) -> str:
    """The database name to show, without secrets: `db1/app`, or `embedded:` and the project, else the folder."""
    if url.is_embedded:
        folder = url.project or url.embedded_folder
        if folder is None:
            return "embedded"
        home = Path.home()
        return f"embedded:~/{folder.relative_to(home)}" if folder.is_relative_to(home) else f"embedded:{folder}"
    address = url.masked.partition("://")[2].partition("?")[0]
    host, _, database = address.rpartition("@")[2].partition("/")
    return f"{host}/{database}" if database else host


def exit_when_terminal_closes(descriptor: int) -> None:
    """Exit this process when its terminal is gone.

    The kernel sends SIGHUP only to processes of the terminal's session. Without it, Textual would read the closed
    terminal forever.
    """
    threading.Thread(target=_exit_on_hangup, args=(descriptor,), name="horsies-terminal-watchdog", daemon=True).start()


def _exit_on_hangup(descriptor: int) -> None:
    terminal = select.poll()
    terminal.register(descriptor, 0)  # no events but POLLHUP and POLLERR, which are always reported
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in terminal.poll()):
        time.sleep(PARENT_POLL_S)
    os._exit(129)  # the status of a process that SIGHUP killed; not by the event loop, which the terminal may block


# Processes started by the web server (`web.py`), one for each browser session


def is_web_child() -> bool:
    """Whether this process draws to a browser instead of a terminal."""
    return os.environ.get("TEXTUAL_DRIVER") == WEB_DRIVER


def exit_when_server_exits() -> None:
    """Exit this process when the web server exits, even if that was killed and could not stop us."""
    server_pid = os.getppid()
    threading.Thread(target=_exit_when_orphaned, args=(server_pid,), name="horsies-web-watchdog", daemon=True).start()


def _exit_when_orphaned(server_pid: int) -> None:
    while os.getppid() == server_pid:
        time.sleep(PARENT_POLL_S)
    # Not sys.exit: in a thread that would end only the thread.
    os._exit(1)
