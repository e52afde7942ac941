"""Who judges, and by which values: a worker by its own, an operator as the fleet would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self, TypeAlias, assert_never, cast, get_args
from uuid import UUID

from horsies.errors import UsageError
from horsies.model.fence import MAX_GAP_INTERVALS
from horsies.model.recovery.decision import ListeningWindow, RecoveryPolicy
from horsies.model.settings.recovery import RecoveryConfig

# Recovery settings as workers publish them in their rows, and how the most patient ones are found.

COMPARED_SETTINGS: Final = (
    "claimed_stale_threshold_ms",
    "running_stale_threshold_ms",
    "worker_stale_threshold_ms",
    "recovery_delay_ms",
    "resilient_multiplier",
    "resilient_flags",
    "max_crashes",
)
"""What has to be equal in a fleet for its workers to judge alike."""
SILENT_AFTER_HEARTBEATS: Final = 3
"""A worker that has been quiet for more than so many of its own beats is silent, long before anybody gives it up."""
_FIELDS: Final = RecoveryConfig.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerThresholds:
    """A worker's own thresholds; None where its row does not say."""

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
    """A worker that has neither stopped nor been declared lost. What its row says is believed where it makes sense."""

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
        """The settings that it judges by; what its row leaves out, or what makes no sense there, is the default."""
        return parse_config(self.stored_config)

    @property
    def stale_at(self) -> datetime:
        """When it no longer counts as alive, unless it beats before."""
        return self.last_heartbeat_at + timedelta(milliseconds=self.config.worker_stale_threshold_ms)

    def is_live(self, now: datetime) -> bool:
        """Whether it is at work, and has given a sign of life within its own threshold."""
        return self.state in {"running", "draining"} and now < self.stale_at

    def is_silent(self, now: datetime) -> bool:
        """Whether so many of its beats are missing that it may well be dead."""
        return is_silent(now - self.last_heartbeat_at, self.config)

    def listening_since(self, now: datetime) -> datetime | None:
        """The start of its series of beats; None where that is broken, as it is by a beat that is overdue."""
        longest_gap = timedelta(milliseconds=MAX_GAP_INTERVALS * self.config.effective_worker_heartbeat_ms)
        if not timedelta(0) <= now - self.last_heartbeat_at <= longest_gap:
            return None
        return self.health_instant("listening_since")

    def health_instant(self, name: str) -> datetime | None:
        """An instant that its health tells of."""
        return parse_instant(self.health, name)


def parse_config(stored: Mapping[str, object]) -> RecoveryConfig:
    """Settings as a worker publishes them; what is left out, or makes no sense, is the default."""
    return RecoveryConfig.unchecked(**{name: value for name, value in stored.items() if _is_valid(name, value)})


def is_silent(quiet: timedelta, config: RecoveryConfig) -> bool:
    """Whether a worker with these settings would have been heard by now, had it lived."""
    return quiet > SILENT_AFTER_HEARTBEATS * timedelta(milliseconds=config.effective_worker_heartbeat_ms)


def parse_instant(health: Mapping[str, object], name: str) -> datetime | None:
    """An instant as a worker publishes it; None for what is none."""
    value = health.get(name)
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.utcoffset() is not None else None


def longest_thresholds(live: Iterable[FleetMember]) -> RecoveryConfig | None:
    """The settings of the live worker with the longest thresholds; None when nobody lives."""
    configs = [each.config for each in live]
    return max(
        configs, key=lambda each: (each.running_stale_threshold_ms, each.claimed_stale_threshold_ms), default=None
    )


def mismatched_settings(live: Iterable[FleetMember]) -> dict[str, list[object]]:
    """The settings in which live workers differ, with the values that there are."""
    configs = [each.config for each in live]
    found = {name: _distinct(getattr(each, name) for each in configs) for name in COMPARED_SETTINGS}
    return {name: values for name, values in found.items() if len(values) > 1}


def _distinct(values: Iterable[object]) -> list[object]:
    distinct: list[object] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return sorted(distinct, key=str)


def _duration(stored: Mapping[str, object], name: str) -> timedelta | None:
    value = stored.get(name)
    return timedelta(milliseconds=cast("float", value)) if _is_valid(name, value) else None


def _is_valid(name: str, value: object) -> bool:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserver:
    """A worker's reaper, which obeys the `auto_*` switches and knows only its own ears."""

    worker_id: UUID
    config: RecoveryConfig
    listening_since: datetime | None
    """None where it has not yet listened at all; it then condemns nobody for silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorObserver:
    """A sweep by hand; `local` are the settings to go by where no worker lives."""

    local_config: RecoveryConfig


Observer: TypeAlias = WorkerObserver | OperatorObserver


class ThresholdSource(StrEnum):
    """Whose thresholds a sweep went by."""

    FLEET = "fleet"
    SETTINGS = "settings"
    OPTIONS = "options"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a sweep went by, before the owner's patience and a task's resilience."""

    claimed: timedelta
    running: timedelta
    recovery_delay: timedelta
    resilient_multiplier: int
    source: ThresholdSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The workers that have neither stopped nor been declared lost, at one instant of the database."""

    now: datetime
    server_started_at: datetime
    members: tuple[FleetMember, ...] = ()

    @property
    def live(self) -> tuple[FleetMember, ...]:
        """Those at work that have given a sign of life within their own threshold."""
        return tuple(each for each in self.members if each.is_live(self.now))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """By what a sweep judges."""

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
    """The values in force for one sweep; a threshold that a healthy worker could not meet is refused."""
    match observer:
        case WorkerObserver():
            return _policy_of_worker(observer, fleet)
        case OperatorObserver():
            return _policy_of_operator(observer, options, fleet)
        case _:
            assert_never(observer)


def _policy_of_worker(judge: WorkerObserver, fleet: Fleet) -> EffectivePolicy:
    since = (judge.listening_since or fleet.now) if judge.config.outage_grace else None
    return EffectivePolicy(
        policy=RecoveryPolicy.from_config(judge.config, honors_auto_switches=True),
        listening=ListeningWindow(listening_since=since),
        source=ThresholdSource.WORKER,
    )


def _policy_of_operator(judge: OperatorObserver, options: SweepOptions, fleet: Fleet) -> EffectivePolicy:
    patient = longest_thresholds(fleet.live)
    config = options.recovery_config or patient or judge.local_config
    _reject_short_threshold(options, fleet)
    policy = replace(RecoveryPolicy.from_config(config), honors_owner_thresholds=options.recovery_config is None)
    return EffectivePolicy(
        policy=_with_options(policy, options),
        listening=ListeningWindow()
        if options.skips_outage_grace or not config.outage_grace
        else _listening_window(fleet),
        source=_source(options, has_fleet=patient is not None),
        warnings=tuple(_mismatch_warnings(fleet)) if options.recovery_config is None else (),
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
    """Those of the live worker that has listened longest. Where nobody lives, the start of the server is remembered."""
    if not fleet.live:
        return ListeningWindow(server_started_at=fleet.server_started_at)
    heard = [since for each in fleet.live if (since := each.listening_since(fleet.now)) is not None]
    if heard:
        return ListeningWindow(listening_since=min(heard))
    # Each has missed a beat. It begins anew to listen with the next, or is dead, which its own threshold will tell.
    return ListeningWindow(listening_since=fleet.now, blind_until=max(each.stale_at for each in fleet.live))


def _source(options: SweepOptions, *, has_fleet: bool) -> ThresholdSource:
    if options.recovery_config is not None or options.sweep_threshold is not None:
        return ThresholdSource.OPTIONS
    return ThresholdSource.FLEET if has_fleet else ThresholdSource.SETTINGS


def _reject_short_threshold(options: SweepOptions, fleet: Fleet) -> None:
    if options.sweep_threshold is None or options.force:
        return
    configs = [each.config for each in fleet.live]
    beats = (max(each.claimer_heartbeat_interval_ms, each.runner_heartbeat_interval_ms) for each in configs)
    least = timedelta(milliseconds=2 * max(beats, default=0))
    if options.sweep_threshold < least:
        raise UsageError(
            f"a threshold of {options.sweep_threshold.total_seconds():g} s is shorter than two beats of the fleet,"
            f" {least.total_seconds():g} s, and would condemn tasks that are well",
            hint="give a longer one, or --force (force=True) where the workers are known to be gone",
        )


def _mismatch_warnings(fleet: Fleet) -> list[str]:
    found = mismatched_settings(fleet.live)
    return [f"workers disagree on recovery.{name}: {', '.join(map(str, values))}" for name, values in found.items()]


# Which worker makes a pass of the reaper: one at a time is enough, and the best listener is the best judge.


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCandidate:
    """A worker whose tick has come."""

    worker_id: UUID
    config: RecoveryConfig
    listening_since: datetime | None


def should_run_pass(candidate: PassCandidate, fleet: Fleet) -> bool:
    """Whether this worker makes a pass now, or leaves it to another. An economy: every worker would judge alike."""
    others = [each for each in fleet.live if each.worker_id != candidate.worker_id]
    return not _has_recent_pass(candidate.config, others, fleet.now) and not (
        _is_in_outage_grace(candidate, fleet.now) and _someone_listens_longer(candidate, others, fleet.now)
    )


def _has_recent_pass(config: RecoveryConfig, others: list[FleetMember], now: datetime) -> bool:
    half = timedelta(milliseconds=config.check_interval_ms / 2)
    passes = (each.health_instant("last_pass_at") for each in others)
    return any(timedelta(0) <= now - at < half for at in passes if at is not None)


def _is_in_outage_grace(candidate: PassCandidate, now: datetime) -> bool:
    """Whether it has not listened long enough to judge by silence, where silence must have been listened to."""
    if not candidate.config.outage_grace:
        return False
    threshold = timedelta(milliseconds=candidate.config.running_stale_threshold_ms)
    return candidate.listening_since is None or now - candidate.listening_since < threshold


def _someone_listens_longer(candidate: PassCandidate, others: list[FleetMember], now: datetime) -> bool:
    mine = candidate.listening_since or now
    return any(since < mine for each in others if (since := each.listening_since(now)) is not None)


# What a sweep is asked to do.

MAX_DURATION: Final = timedelta(days=3650)
MAX_MULTIPLIER: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """None leaves a value to the fleet, and where nobody lives to the local settings."""

    sweep_threshold: timedelta | None = None
    """How long a silence condemns, whatever an owner says itself; ages are then plain."""
    recovery_delay: timedelta | None = None
    dry_run: bool = False
    """List what would be done, without a lock and without a write."""
    worker_id: UUID | None = None
    """Only the tasks of this owner; no task that waits, and no workflow."""
    force: bool = False
    """Plain ages, and thresholds however short."""
    recovery_config: RecoveryConfig | None = None
    """Replaces everything that the fleet says, the owner's own thresholds included; ages are then plain."""
    resilient_multiplier: int | None = None
    resilient_flags: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.sweep_threshold is not None:
            check_threshold(self.sweep_threshold, "the threshold of a sweep")
        if self.recovery_delay is not None and not _is_duration(self.recovery_delay, least=timedelta(0)):
            raise ValueError(
                f"the recovery delay of a sweep must be a timedelta of at most {MAX_DURATION.days} days, not below 0"
            )
        if self.resilient_multiplier is not None and not _is_multiplier(self.resilient_multiplier):
            raise ValueError(f"the resilient multiplier of a sweep must be a whole number, 1 to {MAX_MULTIPLIER}")
        if self.resilient_flags is not None and not _are_names(self.resilient_flags):
            raise ValueError("the resilient flags of a sweep must be a list of names")

    @property
    def skips_outage_grace(self) -> bool:
        """Whether the caller sets the threshold, which turns outage grace off."""
        return self.force or self.sweep_threshold is not None or self.recovery_config is not None


def check_threshold(threshold: object, label: str) -> None:
    """Refuse in words what is no silence that anybody could wait for."""
    if not isinstance(threshold, timedelta):
        raise ValueError(f"{label} must be a timedelta above 0")  # noqa: TRY004  # one kind of refusal, whatever is wrong
    if not _is_duration(threshold, least=timedelta(microseconds=1)):
        raise ValueError(f"{label} must be a time such as 90s or 5m, above 0 and of at most {MAX_DURATION.days} days")


def _is_duration(value: object, *, least: timedelta) -> bool:
    return isinstance(value, timedelta) and least <= value <= MAX_DURATION


def _is_multiplier(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_MULTIPLIER


def _are_names(value: object) -> bool:
    """A text is a sequence of texts too, and never meant as one."""
    return not isinstance(value, str) and all(isinstance(each, str) for each in cast("Iterable[object]", value))
