"""Heartbeat series and settings of workers, the policy of a sweep, and the choice of the worker for the next pass.

A worker's reaper uses its own settings; a manual sweep uses those of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias, assert_never, cast, get_args
from uuid import UUID

from horsies.errors import UsageError
from horsies.model.recovery.decision import ListeningWindow, RecoveryPolicy
from horsies.model.settings.recovery import RecoveryConfig

# Series of worker heartbeats

MAX_GAP_INTERVALS: Final = 1.5
"""A gap between two worker heartbeats of more than this many intervals, that is a missed one, breaks the series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSeries:
    """An unbroken series of worker heartbeats, in database time; only silence after `since` makes others stale."""

    since: datetime
    last_heartbeat_at: datetime

    @classmethod
    def starting_at(cls, heartbeat_at: datetime) -> Self:
        return cls(since=heartbeat_at, last_heartbeat_at=heartbeat_at)

    def is_unbroken(self, now: datetime, recovery: RecoveryConfig) -> bool:
        """Whether a heartbeat at `now` (database time) would still belong to this series."""
        return self.last_heartbeat_at <= now <= self.unbroken_until(recovery)

    def unbroken_until(self, recovery: RecoveryConfig) -> datetime:
        """When the next heartbeat is overdue."""
        return self.last_heartbeat_at + longest_gap(recovery)

    def after_heartbeat(self, heartbeat_at: datetime, recovery: RecoveryConfig) -> Self:
        """Extend the series by one heartbeat, or start a new one after a gap or a jump of the database clock."""
        since = self.since if self.is_unbroken(heartbeat_at, recovery) else heartbeat_at
        return replace(self, since=since, last_heartbeat_at=heartbeat_at)

    def outage_grace_until(self, recovery: RecoveryConfig) -> datetime:
        """When this worker has been connected for a full running threshold and may mark tasks stale."""
        return self.since + timedelta(milliseconds=recovery.running_stale_threshold_ms)


def longest_gap(recovery: RecoveryConfig) -> timedelta:
    """The longest time between two heartbeats of an unbroken series."""
    return timedelta(milliseconds=MAX_GAP_INTERVALS * recovery.effective_worker_heartbeat_ms)


# Published settings and health of workers

COMPARED_SETTINGS: Final = (
    "claimed_stale_threshold_ms",
    "running_stale_threshold_ms",
    "worker_stale_threshold_ms",
    "recovery_delay_ms",
    "resilient_multiplier",
    "resilient_flags",
    "max_crashes",
)
"""Settings that must be equal on all workers for them to make the same decisions."""
SILENT_AFTER_HEARTBEATS: Final = 3
"""A worker that missed more than this many heartbeats is shown as silent, long before it counts as lost."""
_FIELDS: Final = RecoveryConfig.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerThresholds:
    """The thresholds a worker published; None if missing or invalid."""

    claimed: timedelta | None = None
    running: timedelta | None = None
    worker: timedelta | None = None

    @classmethod
    def from_stored(cls, stored: Mapping[str, object]) -> Self:
        return cls(
            claimed=_duration(stored, "claimed_stale_threshold_ms"),
            running=_duration(stored, "running_stale_threshold_ms"),
            worker=_duration(stored, "worker_stale_threshold_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMember:
    """A worker that has neither stopped nor been declared lost; invalid values in its row are ignored."""

    worker_id: UUID
    state: str
    last_heartbeat_at: datetime
    stored_config: Mapping[str, object]
    health: Mapping[str, object]

    @property
    def thresholds(self) -> WorkerThresholds:
        return WorkerThresholds.from_stored(self.stored_config)

    @property
    def config(self) -> RecoveryConfig:
        return parse_config(self.stored_config)

    @property
    def stale_at(self) -> datetime:
        """When it counts as dead, unless it sends a heartbeat before."""
        return self.last_heartbeat_at + timedelta(milliseconds=self.config.worker_stale_threshold_ms)

    def is_live(self, now: datetime) -> bool:
        """Whether it is running or draining, and has sent a heartbeat within its own threshold."""
        return self.state in {"running", "draining"} and now < self.stale_at

    def is_late(self, now: datetime) -> bool:
        """Whether a heartbeat is overdue."""
        return now - self.last_heartbeat_at > longest_gap(self.config)

    def is_silent(self, now: datetime) -> bool:
        """Whether it has missed so many heartbeats that it is probably dead."""
        return is_silent(now - self.last_heartbeat_at, self.config)

    def series(self, now: datetime) -> HeartbeatSeries | None:
        """Return its heartbeat series; None if it is broken or a heartbeat is overdue."""
        if (since := self.health_instant("listening_since")) is None:
            return None
        series = HeartbeatSeries(since=since, last_heartbeat_at=self.last_heartbeat_at)
        return series if series.is_unbroken(now, self.config) else None

    def health_instant(self, name: str) -> datetime | None:
        return parse_instant(self.health, name)


def parse_config(stored: Mapping[str, object]) -> RecoveryConfig:
    """Parse published settings; missing and invalid values get their defaults."""
    valid: dict[str, Any] = {name: value for name, value in stored.items() if _is_valid(name, value)}
    return RecoveryConfig.model_construct(**valid)


def is_silent(heartbeat_age: timedelta, config: RecoveryConfig) -> bool:
    """Whether a worker with these settings has missed so many heartbeats that it is probably dead."""
    return heartbeat_age > SILENT_AFTER_HEARTBEATS * timedelta(milliseconds=config.effective_worker_heartbeat_ms)


def parse_instant(health: Mapping[str, object], name: str) -> datetime | None:
    """Parse a time in a worker's health; None if missing or invalid."""
    value = health.get(name)
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.utcoffset() is not None else None


def longest_thresholds(live: Iterable[FleetMember]) -> RecoveryConfig | None:
    """Return the settings of the live worker with the longest thresholds; None if no worker is live."""
    configs = [member.config for member in live]
    return max(
        configs, key=lambda config: (config.running_stale_threshold_ms, config.claimed_stale_threshold_ms), default=None
    )


def mismatched_settings(live: Iterable[FleetMember]) -> dict[str, list[object]]:
    """Return the compared settings that differ among live workers, with their values."""
    configs = [member.config for member in live]
    mismatched: dict[str, list[object]] = {}
    for name in COMPARED_SETTINGS:
        values: list[object] = []  # not a set: resilient_flags is a list, which is not hashable
        for config in configs:
            if (value := getattr(config, name)) not in values:
                values.append(value)
        if len(values) > 1:
            mismatched[name] = sorted(values, key=str)
    return mismatched


def _duration(stored: Mapping[str, object], name: str) -> timedelta | None:
    value = stored.get(name)
    return timedelta(milliseconds=cast("float", value)) if _is_valid(name, value) else None


def _is_valid(name: str, value: object) -> bool:
    """Whether a published value can be used as this setting."""
    kind = _FIELDS[name].annotation if name in _FIELDS else None
    match value:
        case None:
            return type(None) in get_args(kind)
        case bool():
            return kind is bool
        case int() | float():
            low, high = _bound(name, "ge"), _bound(name, "le")
            # Down to 1, less than users may set: tests run workers with unchecked settings.
            return low is not None and high is not None and min(low, 1) <= value <= high
        case list():
            return name == "resilient_flags" and all(isinstance(flag, str) for flag in cast("list[object]", value))
        case _:
            return False


def _bound(name: str, which: str) -> int | None:
    field = _FIELDS.get(name)
    rules = [] if field is None else field.metadata
    return next((bound for rule in rules if (bound := getattr(rule, which, None)) is not None), None)


# Observers and the policy of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserver:
    """A worker's reaper: follows the `auto_*` switches and counts silence since its own connection only."""

    worker_id: UUID
    config: RecoveryConfig
    series: HeartbeatSeries | None
    """Its heartbeats so far; None before the first. Without one, or if one is overdue, it marks nothing stale."""

    def series_at(self, now: datetime) -> HeartbeatSeries | None:
        """Its heartbeat series; None if one of its own heartbeats is overdue."""
        return self.series if self.series is not None and self.series.is_unbroken(now, self.config) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorObserver:
    """A manual sweep; `local_config` applies if no worker is live."""

    local_config: RecoveryConfig


Observer: TypeAlias = WorkerObserver | OperatorObserver


class ThresholdSource(StrEnum):
    """Where the thresholds of a sweep came from."""

    FLEET = "fleet"
    SETTINGS = "settings"
    OPTIONS = "options"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds of a sweep, before an owner's longer thresholds and the resilient multiplier."""

    claimed: timedelta
    running: timedelta
    recovery_delay: timedelta
    resilient_multiplier: int
    source: ThresholdSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The workers that have neither stopped nor been declared lost; `now` is the database time."""

    now: datetime
    server_started_at: datetime
    members: tuple[FleetMember, ...] = ()

    @property
    def live(self) -> tuple[FleetMember, ...]:
        return tuple(member for member in self.members if member.is_live(self.now))

    @property
    def responsive_ids(self) -> list[UUID]:
        """Workers that are neither silent nor stale."""
        return [
            member.worker_id for member in self.members if self.now < member.stale_at and not member.is_silent(self.now)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """The policy that one sweep applies."""

    policy: RecoveryPolicy
    listening: ListeningWindow
    source: ThresholdSource
    warnings: tuple[str, ...] = ()

    @property
    def thresholds(self) -> Thresholds:
        policy = self.policy
        return Thresholds(
            claimed=policy.claimed_threshold,
            running=policy.running_threshold,
            recovery_delay=policy.recovery_delay,
            resilient_multiplier=policy.resilient_multiplier,
            source=self.source,
        )


def effective_policy(observer: Observer, options: SweepOptions, fleet: Fleet) -> EffectivePolicy:
    """Build the policy of one sweep; raises `UsageError` for a threshold that healthy workers could not meet."""
    match observer:
        case WorkerObserver():
            # Before its first heartbeat it has seen no others either, so no silence counts yet.
            series = observer.series_at(fleet.now) or HeartbeatSeries.starting_at(fleet.now)
            return EffectivePolicy(
                policy=RecoveryPolicy.from_config(observer.config, honors_auto_switches=True),
                listening=_window_of(series, observer.config) if observer.config.outage_grace else ListeningWindow(),
                source=ThresholdSource.WORKER,
            )
        case OperatorObserver():
            return _policy_of_operator(observer, options, fleet)
        case _:
            assert_never(observer)


def _policy_of_operator(observer: OperatorObserver, options: SweepOptions, fleet: Fleet) -> EffectivePolicy:
    fleet_config = longest_thresholds(fleet.live)
    # The fleet's settings before the local ones: a sweep must decide as the workers' reapers would.
    config = options.recovery_config or fleet_config or observer.local_config
    _reject_short_threshold(options, fleet)
    policy = replace(RecoveryPolicy.from_config(config), honors_owner_thresholds=options.recovery_config is None)
    # The caller's own settings apply to all tasks, so it does not matter that the workers disagree.
    mismatches = mismatched_settings(fleet.live) if options.recovery_config is None else {}
    return EffectivePolicy(
        policy=_with_options(policy, options),
        listening=ListeningWindow()
        if options.skips_outage_grace or not config.outage_grace
        else _listening_window(fleet),
        source=_source(options, has_fleet=fleet_config is not None),
        warnings=tuple(
            f"workers disagree on recovery.{name}: {', '.join(map(str, values))}" for name, values in mismatches.items()
        ),
    )


def _with_options(policy: RecoveryPolicy, options: SweepOptions) -> RecoveryPolicy:
    if (threshold := options.sweep_threshold) is not None:
        policy = replace(
            policy, claimed_threshold=threshold, running_threshold=threshold, honors_owner_thresholds=False
        )
    if options.recovery_delay is not None:
        policy = replace(policy, recovery_delay=options.recovery_delay)
    if options.resilient_multiplier is not None:
        policy = replace(policy, resilient_multiplier=options.resilient_multiplier)
    if options.resilient_flags is not None:
        policy = replace(policy, resilient_flags=frozenset(options.resilient_flags))
    return policy


def _listening_window(fleet: Fleet) -> ListeningWindow:
    """Return the window of the live worker with the longest heartbeat series."""
    if not fleet.live:
        return ListeningWindow(server_started_at=fleet.server_started_at)
    windows = [
        _window_of(series, member.config) for member in fleet.live if (series := member.series(fleet.now)) is not None
    ]
    if windows:
        return min(windows, key=lambda window: window.listening_since or fleet.now)
    # Every live worker has missed a heartbeat: each either starts a new series soon, or is dead when it becomes stale.
    blind_until = max(member.stale_at for member in fleet.live)
    return ListeningWindow(listening_since=fleet.now, listening_until=fleet.now, blind_until=blind_until)


def _window_of(series: HeartbeatSeries, config: RecoveryConfig) -> ListeningWindow:
    return ListeningWindow(listening_since=series.since, listening_until=series.unbroken_until(config))


def _source(options: SweepOptions, *, has_fleet: bool) -> ThresholdSource:
    if options.recovery_config is not None or options.sweep_threshold is not None:
        return ThresholdSource.OPTIONS
    return ThresholdSource.FLEET if has_fleet else ThresholdSource.SETTINGS


def _reject_short_threshold(options: SweepOptions, fleet: Fleet) -> None:
    if options.sweep_threshold is None or options.force:
        return
    configs = [member.config for member in fleet.live]
    intervals = (max(config.claimer_heartbeat_interval_ms, config.runner_heartbeat_interval_ms) for config in configs)
    least = timedelta(milliseconds=2 * max(intervals, default=0))
    if options.sweep_threshold < least:
        raise UsageError(
            f"threshold of {options.sweep_threshold.total_seconds():g} s is shorter than two heartbeat intervals of the"
            f" workers ({least.total_seconds():g} s) and would recover healthy tasks",
            hint="use a longer threshold, or --force (force=True) if you know that the workers are dead",
        )


# Which worker runs the next reaper pass


def should_run_pass(candidate: WorkerObserver, fleet: Fleet) -> bool:
    """Whether this worker runs a pass now: not if another just did, or could decide more during outage grace.

    This only saves work: concurrent passes would make the same decisions.
    """
    now, config, own_series = fleet.now, candidate.config, candidate.series_at(fleet.now)
    own_start = own_series and own_series.since
    others = [member for member in fleet.live if member.worker_id != candidate.worker_id]
    half_interval = timedelta(milliseconds=config.check_interval_ms / 2)
    passes = (member.health_instant("last_pass_at") for member in others)
    # A pass in the future is ignored: the database clock was set back since.
    if any(timedelta(0) <= now - at < half_interval for at in passes if at is not None):
        return False
    threshold = timedelta(milliseconds=config.running_stale_threshold_ms)
    is_in_outage_grace = config.outage_grace and (own_start is None or now - own_start < threshold)
    if not is_in_outage_grace:
        return True
    # Leave the pass to a worker that has been connected longer: silence counts from an earlier time for it.
    others_series = (member.series(now) for member in others)
    return not any(series.since < (own_start or now) for series in others_series if series is not None)


# Options of a sweep

MAX_DURATION: Final = timedelta(days=3650)
MAX_MULTIPLIER: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of a sweep; None takes the value from the fleet, or from the local settings if no worker is live."""

    sweep_threshold: timedelta | None = None
    """Threshold for all tasks, overriding the owners' thresholds and outage grace."""
    recovery_delay: timedelta | None = None
    dry_run: bool = False
    """Report what would be done; takes no lock and writes nothing."""
    worker_id: UUID | None = None
    """Recover the tasks of this worker only; no PENDING tasks and no workflows."""
    force: bool = False
    """Skip outage grace and allow short thresholds."""
    recovery_config: RecoveryConfig | None = None
    """Overrides all settings of the fleet, the owners' thresholds and outage grace."""
    resilient_multiplier: int | None = None
    resilient_flags: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.sweep_threshold is not None:
            check_threshold(self.sweep_threshold, "sweep_threshold")
        if self.recovery_delay is not None and not _is_duration(self.recovery_delay, least=timedelta(0)):
            raise ValueError(
                f"recovery_delay must be a timedelta from 0 to {MAX_DURATION.days} days, got {self.recovery_delay!r}"
            )
        multiplier = self.resilient_multiplier
        if multiplier is not None and not (type(multiplier) is int and 1 <= multiplier <= MAX_MULTIPLIER):
            raise ValueError(f"resilient_multiplier must be a whole number from 1 to {MAX_MULTIPLIER}")
        if self.resilient_flags is not None and not _are_names(self.resilient_flags):
            raise ValueError("resilient_flags must be a list of flag names")

    @property
    def skips_outage_grace(self) -> bool:
        """Whether the caller sets the threshold, which turns outage grace off."""
        return self.force or self.sweep_threshold is not None or self.recovery_config is not None


def check_threshold(threshold: object, label: str) -> None:
    """Raise `ValueError` unless this is a positive timedelta of at most `MAX_DURATION`."""
    if not isinstance(threshold, timedelta):
        raise ValueError(f"{label} must be a timedelta above 0")  # noqa: TRY004  # always ValueError, as documented
    if not _is_duration(threshold, least=timedelta(microseconds=1)):
        raise ValueError(
            f"{label} must be a duration such as 90s or 5m, above 0 and of at most {MAX_DURATION.days} days"
        )


def _is_duration(value: object, *, least: timedelta) -> bool:
    return isinstance(value, timedelta) and least <= value <= MAX_DURATION


def _are_names(value: object) -> bool:
    # A str is a sequence of strings too, but not a list of names.
    return not isinstance(value, str) and all(isinstance(name, str) for name in cast("Iterable[object]", value))
