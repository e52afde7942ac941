"""The database's time, ticking on this machine: a laptop with a wrong clock must not invent stale tasks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DatabaseClock:
    """What time it is for the database: as it last said, plus what has passed here since."""

    def __init__(
        self, ticks: Callable[[], float] = time.monotonic, local: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.ticks = ticks
        """Seconds that pass here, from no point in particular."""
        self._local = local
        self._said_at = local()
        self._heard = ticks()

    def heard(self, at: datetime, *, delay: timedelta = timedelta(0)) -> None:
        """The database said that it is `at`; its answer took `delay`, half of it on the way here."""
        self._said_at = at + delay / 2
        self._heard = self.ticks()

    def now(self) -> datetime:
        return self._said_at + timedelta(seconds=self.ticks() - self._heard)

    @property
    def offset(self) -> timedelta:
        """How far the database is ahead of this machine."""
        return self.now() - self._local()
