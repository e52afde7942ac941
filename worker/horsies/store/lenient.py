"""Times that Python cannot hold, read as the nearest that it can: one odd row must not hide all others.

For connections that only read. A worker takes such rows for what they are: not due for thousands of years.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.store.link import Connection

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_LONGEST: Final = timedelta(days=10**8)
_ENDLESS: Final = 2**63
"""As microseconds, minus this is the database's word for minus infinity, and one less its word for infinity."""


async def read_any_time(connection: Connection) -> None:
    """Have instants and durations of this connection decoded here, where nothing is out of range."""
    for name, encoder, decoder in (
        ("timestamptz", _as_stored, _instant),
        ("interval", _parts, _duration),
    ):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="tuple")


def _as_stored(at: datetime) -> tuple[int]:
    if at == datetime.min:  # noqa: DTZ901  # the driver's words for both ends of time
        return (-_ENDLESS,)
    if at == datetime.max:  # noqa: DTZ901
        return (_ENDLESS - 1,)
    return ((at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1),)


def _instant(stored: tuple[int]) -> datetime:
    (microseconds,) = stored
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LATEST if microseconds > 0 else _EARLIEST


def _parts(duration: timedelta) -> tuple[int, int, int]:
    return 0, duration.days, duration.seconds * 1_000_000 + duration.microseconds


def _duration(stored: tuple[int, int, int]) -> timedelta:
    months, days, microseconds = stored
    years, months = divmod(months, 12)
    days += years * 365 + months * 30
    try:
        length = timedelta(days=days, microseconds=microseconds)
    except OverflowError:
        return _LONGEST if days > 0 else -_LONGEST
    return max(-_LONGEST, min(length, _LONGEST))
