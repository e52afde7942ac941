"""Recovery settings as workers publish them in their rows, and how the most patient ones are found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self, cast, get_args

from horsies.model.fence import UNBROKEN_BEATS
from horsies.model.settings.recovery import RecoveryConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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
MISSED_BEATS: Final = 3
"""A worker that has been quiet for more than so many of its own beats is silent, long before anybody gives it up."""
_FIELDS: Final = RecoveryConfig.model_fields


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
    """A worker that has neither stopped nor been declared lost. What its row says is believed where it makes sense."""

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
        """The settings that it judges by; what its row leaves out, or what makes no sense there, is the default."""
        return config_in(self.stored_config)

    @property
    def given_up_at(self) -> datetime:
        """When it no longer counts as alive, unless it beats before."""
        return self.last_heartbeat_at + timedelta(milliseconds=self.config.worker_stale_threshold_ms)

    def is_live(self, now: datetime) -> bool:
        """Whether it is at work, and has given a sign of life within its own threshold."""
        return self.state in {"running", "draining"} and now < self.given_up_at

    def is_silent(self, now: datetime) -> bool:
        """Whether so many of its beats are missing that it may well be dead."""
        return is_silent(now - self.last_heartbeat_at, self.config)

    def listening_since(self, now: datetime) -> datetime | None:
        """The start of its series of beats; None where that is broken, as it is by a beat that is overdue."""
        longest_gap = timedelta(milliseconds=UNBROKEN_BEATS * self.config.worker_beat_ms)
        if not timedelta(0) <= now - self.last_heartbeat_at <= longest_gap:
            return None
        return self.instant("listening_since")

    def instant(self, name: str) -> datetime | None:
        """An instant that its health tells of."""
        return instant_in(self.health, name)


def config_in(stored: Mapping[str, object]) -> RecoveryConfig:
    """Settings as a worker publishes them; what is left out, or makes no sense, is the default."""
    return RecoveryConfig.unchecked(**{name: value for name, value in stored.items() if _makes_sense(name, value)})


def is_silent(quiet: timedelta, config: RecoveryConfig) -> bool:
    """Whether a worker with these settings would have been heard by now, had it lived."""
    return quiet > MISSED_BEATS * timedelta(milliseconds=config.worker_beat_ms)


def instant_in(health: Mapping[str, object], name: str) -> datetime | None:
    """An instant as a worker publishes it; None for what is none."""
    value = health.get(name)
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.utcoffset() is not None else None


def most_patient(live: Iterable[FleetMember]) -> RecoveryConfig | None:
    """The settings of the live worker with the longest thresholds; None when nobody lives."""
    configs = [each.config for each in live]
    return max(
        configs, key=lambda each: (each.running_stale_threshold_ms, each.claimed_stale_threshold_ms), default=None
    )


def disagreements(live: Iterable[FleetMember]) -> dict[str, list[object]]:
    """The settings in which live workers differ, with the values that there are."""
    configs = [each.config for each in live]
    found = {name: _distinct(getattr(each, name) for each in configs) for name in COMPARED}
    return {name: values for name, values in found.items() if len(values) > 1}


def _distinct(values: Iterable[object]) -> list[object]:
    distinct: list[object] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return sorted(distinct, key=str)


def _duration(stored: Mapping[str, object], name: str) -> timedelta | None:
    value = stored.get(name)
    return timedelta(milliseconds=cast("float", value)) if _makes_sense(name, value) else None


def _makes_sense(name: str, value: object) -> bool:
    """Whether a stored value is one that a judge can work with."""
    kind = _FIELDS[name].annotation if name in _FIELDS else None
    match value:
        case None:
            return type(None) in get_args(kind)
        case bool():
            return kind is bool
        case int() | float():
            low, high = _bound(name, "ge"), _bound(name, "le")
            # Less than may be set, for a worker with settings that were not checked; but nothing that means nothing.
            return low is not None and high is not None and min(low, 1) <= value <= high
        case list():
            return name == "resilient_flags" and all(isinstance(flag, str) for flag in cast("list[object]", value))
        case _:
            return False


def _bound(name: str, which: str) -> int | None:
    field = _FIELDS.get(name)
    rules = [] if field is None else field.metadata
    return next((bound for rule in rules if (bound := getattr(rule, which, None)) is not None), None)
