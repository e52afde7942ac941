"""From settings and options to a running app."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
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
from horsies_tui.data.source import DataSource, Opener

if TYPE_CHECKING:
    from horsies_tui.app import HorsiesApp


# The other side of `serving`: this process is the app of one visitor.

WEB_DRIVER: Final = "textual.drivers.web_driver:WebDriver"
PARENT_POLL_S: Final = 0.5


def is_web_child() -> bool:
    """Whether what is drawn goes to a browser and not to a terminal."""
    return os.environ.get("TEXTUAL_DRIVER") == WEB_DRIVER


def exit_with_server() -> None:
    """End when the server does, however it ends: nobody would be there to close this app."""
    server = os.getppid()
    threading.Thread(target=_exit_when_orphaned, args=(server,), name="horsies-served", daemon=True).start()


def _exit_when_orphaned(server: int) -> None:
    while os.getppid() == server:
        time.sleep(PARENT_POLL_S)
    # Not `sys.exit`: whatever the app is waiting for, it waits for nobody any more.
    os._exit(1)


READ_TIMEOUT_S = 3.0
"""So long a screen waits for what it shows. What an operator decided to change may take as long as anywhere else."""
MAX_CONNECTIONS = 3
"""A screen asks several questions at once; the workers need the server's connections more than it does."""
SLOW_TERMINAL_ENV = {"TEXTUAL_FPS": "15", "TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
SLOW_REFRESH_MS = 1000
GC_THRESHOLD = 50_000
"""So many objects are made before it is seen which of them are garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What the command line says beyond the settings."""

    actor: str | None = None
    is_read_only: bool = False
    is_demo: bool = False
    is_slow: bool = False
    has_mouse: bool = True
    log_file: Path | None = None
    add_connection_options: Callable[[str], str] = str
    """Has the command of a hint lead to the same database."""

    @property
    def cli_arguments(self) -> list[str]:
        """The same as arguments of the command."""
        flags = {
            "--read-only": self.is_read_only,
            "--demo": self.is_demo,
            "--slow": self.is_slow,
            "--no-mouse": not self.has_mouse,
        }
        given = {"--as": self.actor, "--log-file": self.log_file and str(self.log_file.absolute())}
        valued = [part for name, value in given.items() if value for part in (name, value)]
        return [*(flag for flag, is_set in flags.items() if is_set), *valued]


@dataclass(frozen=True, slots=True)
class DatabaseOpener:
    """Opens the configured database for the screens."""

    settings: LoadedSettings
    options: LaunchOptions

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        # All that changes the database takes long to load, and nobody should wait for it in front of a dark screen.
        ops_module = await asyncio.to_thread(importlib.import_module, "horsies_ops.ops")
        async with ops_module.open_ops(
            self.settings.app,
            read_only=read_only,
            actor=self.options.actor,
            via="tui",
            read_timeout_s=READ_TIMEOUT_S,
            connections=MAX_CONNECTIONS,
            application_name="horsies-tui",
        ) as ops:
            try:
                await ops.refuse_unless_current()
            except HorsiesError as error:
                error.help_text = self.options.add_connection_options(error.help_text or "")
                raise
            yield ops


def launch(settings: LoadedSettings, options: LaunchOptions) -> int:
    """Run the screens until they are left."""
    # What is loaded now is no garbage, and looking for some again and again is a tenth of the time to the first paint.
    gc.set_threshold(GC_THRESHOLD)
    if is_web_child():
        exit_with_server()
    if options.is_slow:
        # Textual reads these when it is imported.
        os.environ.update(SLOW_TERMINAL_ENV)
    # The terminal belongs to the screens: a line on stderr would be drawn over them.
    with (options.log_file or Path(os.devnull)).open("a", encoding="utf-8") as log:
        configure_logging(settings.log.level, settings.log.format, statements=settings.log.statements, stream=log)
        application = build_app(settings, options)
        application.run(mouse=options.has_mouse)
    return application.return_code or 0


def serve_in_browser(options: LaunchOptions, *, host: str, port: int, on_ready: Callable[[str], None]) -> int:
    """Serve the screens until told to stop; `ready` gets the address. Settings go by the environment."""
    if importlib.util.find_spec("textual_serve") is None:
        raise ConfigurationError(
            "horsies tui --serve needs the package textual-serve",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="pip install textual-serve, or horsies-ops[web]",
        )
    from horsies_tui.web import serve

    serve(options.cli_arguments, host=host, port=port, on_ready=on_ready)
    return 0


def build_app(settings: LoadedSettings, options: LaunchOptions) -> HorsiesApp:
    """The app for these settings, not yet running."""
    from horsies_tui.app import HorsiesApp
    from horsies_tui.data.context import StateFile, default_state_path
    from horsies_tui.theme import default_themes_folder, load_user_themes

    tui = settings.tui
    if options.is_slow:
        tui = tui.model_copy(update={"refresh_ms": max(tui.refresh_ms, SLOW_REFRESH_MS)})
    memory = StateFile(default_state_path())
    if memory.state.theme is not None and settings.origin_of(("tui", "theme")).precedence is Precedence.DEFAULT:
        tui = tui.model_copy(update={"theme": memory.state.theme})
    opener, database = _opener(settings, options)
    return HorsiesApp(
        opener,
        tui,
        database_name=database,
        read_only=options.is_read_only,
        state_file=memory,
        themes=load_user_themes(default_themes_folder()),
    )


def _opener(settings: LoadedSettings, options: LaunchOptions) -> tuple[Opener, str]:
    """Where the data comes from, and what that is called."""
    if not options.is_demo:
        return DatabaseOpener(settings, options), database_name(settings.app.broker.database_url)
    from horsies_tui.demo import DATABASE_NAME, DemoOpener

    return DemoOpener(), DATABASE_NAME


def database_name(url: DatabaseUrl) -> str:
    """`db1/app`, `embedded:~/shop/db`: enough to tell one database from another, and never a secret."""
    if url.is_embedded:
        folder = url.embedded_folder
        return "embedded" if folder is None else f"embedded:{_abbreviate_home(folder)}"
    address = url.masked.partition("://")[2].partition("?")[0]
    host, _, database = address.rpartition("@")[2].partition("/")
    return f"{host}/{database}" if database else host


def _abbreviate_home(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)
