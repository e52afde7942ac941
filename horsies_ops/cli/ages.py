"""Durations and instants as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)), ("s", timedelta(seconds=1)))


def age(duration: timedelta | None) -> str:
    """Two units at most, as `3m12s` or `1d2h`; below ten seconds to the tenth, and `-` for none."""
    if duration is None:
        return "-"
    if duration < timedelta(0):
        return f"-{age(-duration)}"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}s"
    at = next(number for number, (_, unit) in enumerate(_UNITS) if duration >= unit)
    (name, unit), *smaller = _UNITS[at : at + 2]
    whole, rest = divmod(duration, unit)
    return f"{whole}{name}" + "".join(f"{rest // less:02}{called}" for called, less in smaller)


def instant(at: datetime) -> str:
    """To the second, and in UTC wherever one is."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
