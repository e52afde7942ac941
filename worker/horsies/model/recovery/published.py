"""Recovery settings as workers publish them in their rows, and how the most patient ones are found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self, cast

from horsies.model.fence import UNBROKEN_BEATS
from horsies.model.settings.recovery import RecoveryConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

COMPARED: Final = (
    "claimed_stale_threshold_ms",
    "running_stale_threshold_ms",
    "worker_stale_threshold_ms",
    "recovery_delay_ms",
    "resilient_multiplier",
    "resilient_flags",
    "max_crashes",
)
"""What has to be equal in a fleet for its workers to judge alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A worker's own thresholds; None where its row does not say."""

    claimed: timedelta | None = None
    running: timedelta | None = None
    worker: timedelta | None = None

    @classmethod
    def of(cls, stored: Mapping[str, object]) -> Self:
        return cls(
            claimed=_duration(stored, "claimed_stale_threshold_ms"),
            running=_duration(stored, "running_stale_threshold_ms"),
            worker=_duration(stored, "worker_stale_threshold_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMember:
    """A worker that has neither stopped nor been declared lost."""

    worker_id: UUID
    state: str
    last_heartbeat_at: datetime
    stored_config: Mapping[str, object]
    health: Mapping[str, object]

    @property
    def published(self) -> Published:
        return Published.of(self.stored_config)

    @property
    def config(self) -> RecoveryConfig:
        """All of its settings; what its row leaves out or no longer makes sense is the default."""
        known = RecoveryConfig.model_fields
        return RecoveryConfig.model_construct(
            **{name: value for name, value in self.stored_config.items() if name in known}  # pyright: ignore[reportArgumentType]
        )

    def is_fresh(self, now: datetime) -> bool:
        """Whether it has given a sign of life within its own threshold."""
        limit = self.published.worker
        return limit is not None and now - self.last_heartbeat_at < limit

    def listening_since(self, now: datetime) -> datetime | None:
        """The start of its series of beats; None where that is broken, as it is by a beat that is overdue."""
        longest_gap = timedelta(milliseconds=UNBROKEN_BEATS * self.config.worker_beat_ms)
        since = self.health.get("listening_since")
        if not isinstance(since, str) or now - self.last_heartbeat_at > longest_gap:
            return None
        try:
            return datetime.fromisoformat(since)
        except ValueError:
            return None


def longest_listener(fleet: Iterable[FleetMember], now: datetime) -> datetime | None:
    """Since when the live worker that has listened longest has done so; None when nobody listens."""
    return min((since for each in fleet if (since := each.listening_since(now)) is not None), default=None)


def most_patient(fleet: Iterable[FleetMember], now: datetime) -> RecoveryConfig | None:
    """The settings of the live worker with the longest thresholds; None when nobody lives."""
    live = [each.config for each in fleet if each.is_fresh(now)]
    return max(live, key=lambda each: (each.running_stale_threshold_ms, each.claimed_stale_threshold_ms), default=None)


def disagreements(fleet: Sequence[FleetMember], now: datetime) -> dict[str, list[object]]:
    """The settings in which live workers differ, with the values that there are."""
    live = [each.config for each in fleet if each.is_fresh(now)]
    found = {name: _distinct(getattr(each, name) for each in live) for name in COMPARED}
    return {name: values for name, values in found.items() if len(values) > 1}


def _distinct(values: Iterable[object]) -> list[object]:
    distinct: list[object] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return sorted(distinct, key=str)


def _duration(stored: Mapping[str, object], name: str) -> timedelta | None:
    value = stored.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return timedelta(milliseconds=cast("float", value)) if is_number else None
