"""Times that are counted from the moment at which a row is written, however long ago its test was collected."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class Moment:
    """So much after (or before) now, whenever that is."""

    after: timedelta

    def __add__(self, span: timedelta) -> Moment:
        return Moment(self.after + span)

    def __sub__(self, span: timedelta) -> Moment:
        return Moment(self.after - span)

    def instant(self, now: datetime | None = None) -> datetime:
        return (now or datetime.now(UTC)) + self.after


NOW = Moment(timedelta())
