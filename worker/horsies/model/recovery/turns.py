"""Which worker makes a pass of the reaper: one at a time is enough, and the best listener is the best judge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from horsies.model.recovery.judging import Fleet
    from horsies.model.recovery.published import FleetMember
    from horsies.model.settings.recovery import RecoveryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker whose tick has come."""

    worker_id: UUID
    config: RecoveryConfig
    listening_since: datetime | None


def has_the_turn(candidate: Candidate, fleet: Fleet) -> bool:
    """Whether this worker makes a pass now, or leaves it to another. An economy: every worker would judge alike."""
    others = [each for each in fleet.live if each.worker_id != candidate.worker_id]
    return not _has_just_been_made(candidate.config, others, fleet.now) and not (
        _is_new(candidate, fleet.now) and _someone_listens_longer(candidate, others, fleet.now)
    )


def _has_just_been_made(config: RecoveryConfig, others: list[FleetMember], now: datetime) -> bool:
    half = timedelta(milliseconds=config.check_interval_ms / 2)
    passes = (each.instant("last_pass_at") for each in others)
    return any(timedelta(0) <= now - at < half for at in passes if at is not None)


def _is_new(candidate: Candidate, now: datetime) -> bool:
    """Whether it has not listened long enough to judge by silence, where silence must have been listened to."""
    if not candidate.config.outage_amnesty:
        return False
    threshold = timedelta(milliseconds=candidate.config.running_stale_threshold_ms)
    return candidate.listening_since is None or now - candidate.listening_since < threshold


def _someone_listens_longer(candidate: Candidate, others: list[FleetMember], now: datetime) -> bool:
    mine = candidate.listening_since or now
    return any(since < mine for each in others if (since := each.listening_since(now)) is not None)
