"""Who judges, and by which values: a worker by its own, an operator as the fleet would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from horsies.errors import UsageError
from horsies.model.recovery.evidence import Ears
from horsies.model.recovery.policy import RecoveryPolicy
from horsies.model.recovery.published import disagreements, most_patient

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.recovery.options import SweepOptions
    from horsies.model.recovery.published import FleetMember
    from horsies.model.settings.recovery import RecoveryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJudge:
    """A worker's reaper, which obeys the `auto_*` switches and knows only its own ears."""

    worker_id: UUID
    config: RecoveryConfig
    listening_since: datetime | None
    """None where it has not yet listened at all; it then condemns nobody for silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorJudge:
    """A sweep by hand; `local` are the settings to go by where no worker lives."""

    local: RecoveryConfig


Judge: TypeAlias = WorkerJudge | OperatorJudge


class Source(StrEnum):
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
    source: Source


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
class Ruling:
    """By what a sweep judges."""

    policy: RecoveryPolicy
    ears: Ears
    source: Source
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


def ruling(judge: Judge, options: SweepOptions, fleet: Fleet) -> Ruling:
    """The values in force for one sweep; a threshold that a healthy worker could not meet is refused."""
    match judge:
        case WorkerJudge():
            return _of_worker(judge, fleet)
        case OperatorJudge():
            return _of_operator(judge, options, fleet)
        case _:
            assert_never(judge)


def _of_worker(judge: WorkerJudge, fleet: Fleet) -> Ruling:
    since = (judge.listening_since or fleet.now) if judge.config.outage_amnesty else None
    return Ruling(
        policy=RecoveryPolicy.of(judge.config, obeys_switches=True),
        ears=Ears(listening_since=since),
        source=Source.WORKER,
    )


def _of_operator(judge: OperatorJudge, options: SweepOptions, fleet: Fleet) -> Ruling:
    patient = most_patient(fleet.live)
    config = options.recovery_config or patient or judge.local
    _check_threshold(options, fleet)
    policy = replace(RecoveryPolicy.of(config), waits_for_owner=options.recovery_config is None)
    return Ruling(
        policy=_with_options(policy, options),
        ears=Ears() if options.is_plain or not config.outage_amnesty else _ears(fleet),
        source=_source(options, has_fleet=patient is not None),
        warnings=tuple(_disagreement(fleet)) if options.recovery_config is None else (),
    )


def _with_options(policy: RecoveryPolicy, options: SweepOptions) -> RecoveryPolicy:
    if (threshold := options.sweep_threshold) is not None:
        policy = replace(policy, claimed_threshold=threshold, running_threshold=threshold, waits_for_owner=False)
    if options.recovery_delay is not None:
        policy = replace(policy, recovery_delay=options.recovery_delay)
    if options.resilient_multiplier is not None:
        policy = replace(policy, resilient_multiplier=options.resilient_multiplier)
    if options.resilient_flags is not None:
        policy = replace(policy, resilient_flags=frozenset(options.resilient_flags))
    return policy


def _ears(fleet: Fleet) -> Ears:
    """Those of the live worker that has listened longest. Where nobody lives, the start of the server is remembered."""
    if not fleet.live:
        return Ears(server_started_at=fleet.server_started_at)
    heard = [since for each in fleet.live if (since := each.listening_since(fleet.now)) is not None]
    if heard:
        return Ears(listening_since=min(heard))
    # Each has missed a beat. It begins anew to listen with the next, or is dead, which its own threshold will tell.
    return Ears(listening_since=fleet.now, deaf_until=max(each.given_up_at for each in fleet.live))


def _source(options: SweepOptions, *, has_fleet: bool) -> Source:
    if options.recovery_config is not None or options.sweep_threshold is not None:
        return Source.OPTIONS
    return Source.FLEET if has_fleet else Source.SETTINGS


def _check_threshold(options: SweepOptions, fleet: Fleet) -> None:
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


def _disagreement(fleet: Fleet) -> list[str]:
    found = disagreements(fleet.live)
    return [f"workers disagree on recovery.{name}: {', '.join(map(str, values))}" for name, values in found.items()]
