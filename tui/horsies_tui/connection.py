"""How the connection stands. The header always says it, and actions depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies_tui.format import clean, seconds, took

if TYPE_CHECKING:
    from datetime import datetime

    from horsies_tui.glyphs import Glyphs

SLOW: Final = timedelta(seconds=1)
NEGLIGIBLE: Final = timedelta(milliseconds=5)


class State(StrEnum):
    CONNECTING = "CONNECTING"
    LIVE = "LIVE"
    """Changes are told as they happen."""
    POLLING = "POLLING"
    """Queries work, notifications do not."""
    LOST = "RECONNECTING"
    REFUSED = "REFUSED"
    """Trying again would not help: another schema, no rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    state: State = State.CONNECTING
    latency: timedelta | None = None
    """Of the last answer."""
    why: str = ""
    """What happened to it, where it is not up."""
    hint: str = ""
    """What a person can do about it."""
    since: datetime | None = None
    attempt: int = 0
    """Tries to connect that have failed since."""
    retry_in: timedelta | None = None
    """How long after the last of them the next one comes."""
    has_been_up: bool = False
    """Whether there are rows on the screen that it brought."""

    @property
    def is_up(self) -> bool:
        """Whether rows are fresh and actions possible."""
        return self.state in (State.LIVE, State.POLLING)

    @property
    def is_slow(self) -> bool:
        return self.is_up and self.latency is not None and self.latency > SLOW

    def lost(self, why: str, since: datetime, *, attempt: int = 0, retry_in: timedelta | None = None) -> Connection:
        """The same connection after a failure; it has been away since the first."""
        return Connection(
            state=State.LOST,
            why=why,
            since=self.since if self.state is State.LOST else since,
            attempt=attempt,
            retry_in=retry_in,
        )


def steady(shown: timedelta | None, measured: timedelta) -> timedelta:
    """The latency to show: as before, unless it has changed by so much that somebody would care."""
    if shown is None or (measured > SLOW) is not (shown > SLOW):
        return measured
    return measured if abs(measured - shown) > max(shown / 2, NEGLIGIBLE) else shown


def described(connection: Connection, glyphs: Glyphs, *, poll_s: float) -> str:
    """What the header says: `● LIVE 12ms`, `◐ POLLING 5s`, `○ RECONNECTING in 4s (3)`."""
    latency = took(connection.latency) if connection.latency is not None else ""
    if connection.is_slow:
        return f"{glyphs.slow} SLOW {latency}"
    match connection.state:
        case State.CONNECTING:
            return f"{glyphs.connecting} CONNECTING"
        case State.LIVE:
            return f"{glyphs.live} LIVE {latency}".rstrip()
        case State.POLLING:
            return f"{glyphs.polling} POLLING {poll_s:g}s {latency}".rstrip()
        case State.LOST:
            soon = f" in {seconds(connection.retry_in)}" if connection.retry_in else ""
            tries = f" ({connection.attempt})" if connection.attempt else ""
            return f"{glyphs.lost} RECONNECTING{soon}{tries}"
        case State.REFUSED:
            return f"{glyphs.bad} {clean(connection.why, limit=40)}"
