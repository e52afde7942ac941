"""Context shared by all screens: settings, clock, connection and the state saved between runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tomli_w
from platformdirs import user_state_path

from horsies_ops.source import DataSource

if TYPE_CHECKING:
    from horsies.model.settings import TuiConfig
    from horsies_tui.data.queries import LiveQueries
    from horsies_tui.data.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """What the TUI remembers between runs."""

    theme: str | None = None
    is_wide: bool = False
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    """The last filter by database name."""


class StateFile:
    """The saved state and its file; without a path it is kept in memory only.

    Separate from `horsies.toml`, which the TUI never writes. An unreadable or unwritable file is ignored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.state = SavedState() if path is None else _read(path)

    def update(self, **changes: object) -> None:
        """Change fields of the state and save it."""
        state = replace(self.state, **changes)  # pyright: ignore[reportArgumentType]
        if state == self.state:
            return
        self.state = state
        if self._path is not None:
            # TOML has no null, so an unset theme is left out.
            theme = {} if state.theme is None else {"theme": state.theme}
            document: dict[str, Any] = {**theme, "wide": state.is_wide, "filters": dict(state.filters)}
            with contextlib.suppress(OSError):
                _write_atomically(self._path, tomli_w.dumps(document))

    def save_filter(self, database: str, text: str) -> None:
        """Save the filter last used on a database; an empty one is removed."""
        others = {name: saved for name, saved in self.state.filters.items() if name != database}
        self.update(filters={**others, database: text} if text else others)


def default_state_path() -> Path:
    """`$XDG_STATE_HOME/horsies/tui.toml`, or the platform's equivalent."""
    return user_state_path("horsies", appauthor=False) / "tui.toml"


def _read(path: Path) -> SavedState:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return SavedState()
    theme, filters = document.get("theme"), document.get("filters")
    entries = cast("dict[str, object]", filters).items() if isinstance(filters, dict) else ()
    return SavedState(
        theme=theme if isinstance(theme, str) else None,
        is_wide=document.get("wide") is True,
        filters={name: text for name, text in entries if isinstance(text, str)},
    )


def _write_atomically(path: Path, text: str) -> None:
    """Replace the file in one step, so that a reader sees the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


class DatabaseClock:
    """The database's time: its last answer plus the time elapsed here since.

    Ages must not depend on the local clock: a wrong one would make tasks look stale.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, local: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.monotonic = monotonic
        self._local = local
        self._database_time = local()
        self._synced_at = monotonic()

    def synchronize(self, at: datetime, *, round_trip: timedelta = timedelta(0)) -> None:
        """Set the clock to `at`, the database's answer to a query that took `round_trip`."""
        # Assume that the answer took half of the round trip to arrive.
        self._database_time = at + round_trip / 2
        self._synced_at = self.monotonic()

    def now(self) -> datetime:
        return self._database_time + timedelta(seconds=self.monotonic() - self._synced_at)

    @property
    def offset(self) -> timedelta:
        """How far the database clock is ahead of the local one."""
        return self.now() - self._local()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """One per app, created before the first screen."""

    queries: LiveQueries
    session: Session
    clock: DatabaseClock
    settings: TuiConfig
    database_name: str
    """Shown in the header; typed to confirm dangerous actions."""
    state_file: StateFile = field(default_factory=StateFile)
    caption_file: Path | None = None
    """See `LaunchOptions.caption_file`."""

    def read_caption(self) -> str:
        """The line that `horsies demo` shows below the tabs now; empty without a demo."""
        if self.caption_file is None:
            return ""
        try:
            age = timedelta(seconds=time.time() - self.caption_file.stat().st_mtime)
            return self.caption_file.read_text(encoding="utf-8").replace("{age}", f"{max(age.seconds, 0)} s")
        except OSError:
            return ""

    @property
    def source(self) -> DataSource | None:
        """The open data source; None while disconnected."""
        return self.session.source

    @property
    def is_read_only(self) -> bool:
        return self.session.read_only

    @property
    def can_act(self) -> bool:
        """Whether actions are enabled: not read-only, and connected."""
        return not self.is_read_only and self.session.connection.is_up
