"""What every screen has at hand."""

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

from horsies_tui.data.source import DataSource

if TYPE_CHECKING:
    from horsies.model.settings import TuiConfig
    from horsies_tui.data.queries import LiveQueries
    from horsies_tui.data.session import Session
    from horsies_tui.theme import Glyphs


# What the screens remember from one time to the next: theme, columns, and the last filter on each database.
#
# It is kept in a file of its own, for nobody's `horsies.toml` is ever written to. A file that cannot be read or written
# is as good as none.


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    theme: str | None = None
    is_wide: bool = False
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    """By database."""


class StateFile:
    """The newest that was remembered; without a path it is forgotten in the end."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.state = SavedState() if path is None else _read(path)

    def update(self, **changes: object) -> None:
        """Remember this as well."""
        known = replace(self.state, **changes)  # pyright: ignore[reportArgumentType]
        if known != self.state:
            self.state = known
            self._write()

    def save_filter(self, database: str, text: str) -> None:
        """Remember the filter that is used there; an empty one is not worth it."""
        others = {name: each for name, each in self.state.filters.items() if name != database}
        self.update(filters={**others, database: text} if text else others)

    def _write(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                _write_atomically(self._path, tomli_w.dumps(_document(self.state)))


def default_state_path() -> Path:
    """`$XDG_STATE_HOME/horsies/tui.toml`, or where the system keeps such things."""
    return user_state_path("horsies", appauthor=False) / "tui.toml"


def _document(known: SavedState) -> dict[str, Any]:
    theme = {} if known.theme is None else {"theme": known.theme}
    return {**theme, "wide": known.is_wide, "filters": dict(known.filters)}


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
    """Write the file so that whoever reads it finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """One for all screens of an app; it is made before the first of them."""

    queries: LiveQueries
    session: Session
    clock: DatabaseClock
    glyphs: Glyphs
    settings: TuiConfig
    database_name: str
    """Which one, for the header and for those who must type its name."""
    actor: str
    state_file: StateFile = field(default_factory=StateFile)
    """What is remembered from one time to the next."""

    @property
    def source(self) -> DataSource | None:
        """Whom to ask; None while there is no connection."""
        return self.session.source

    @property
    def is_read_only(self) -> bool:
        return self.session.read_only

    @property
    def can_act(self) -> bool:
        """Whether actions are to be had at all."""
        return not self.is_read_only and self.session.connection.is_up


# The database's time, ticking on this machine: a laptop with a wrong clock must not invent stale tasks.


class DatabaseClock:
    """What time it is for the database: as it last said, plus what has passed here since."""

    def __init__(
        self, ticks: Callable[[], float] = time.monotonic, local: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.monotonic = ticks
        """Seconds that pass here, from no point in particular."""
        self._local = local
        self._database_time = local()
        self._synced_at = ticks()

    def synchronize(self, at: datetime, *, round_trip: timedelta = timedelta(0)) -> None:
        """The database said that it is `at`; its answer took `delay`, half of it on the way here."""
        self._database_time = at + round_trip / 2
        self._synced_at = self.monotonic()

    def now(self) -> datetime:
        return self._database_time + timedelta(seconds=self.monotonic() - self._synced_at)

    @property
    def offset(self) -> timedelta:
        """How far the database is ahead of this machine."""
        return self.now() - self._local()
