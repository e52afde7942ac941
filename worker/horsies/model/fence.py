"""The fence of a disconnected worker, its heartbeat series, and the bounds it announces at start-up.

The fence uses the worker's monotonic clock, in seconds; heartbeat series use the database clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from horsies.model.settings.app import AppConfig, CustomQueueConfig
    from horsies.model.settings.recovery import RecoveryConfig
    from horsies.model.settings.worker import WorkerConfig


MAX_GAP_INTERVALS: Final = 1.5
"""A gap between two worker heartbeats of more than this many intervals breaks the series."""
FENCE_HEARTBEAT_FRACTION: Final = 0.75
"""An idle worker sends a heartbeat after this fraction of the fence limit at the latest."""

MAX_CHILD_HEARTBEAT_S: Final = 1.0
MIN_HEARTBEATS_PER_THRESHOLD: Final = 5
"""A child sends at least this many heartbeats per running threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Stops a disconnected worker from claiming and starting tasks, because others may recover its claims soon.

    A success counts from the time its statement was sent: a response read after the machine was suspended says nothing
    about the time in between.
    """

    limit_s: float
    last_success_at: float
    is_up: bool = False
    """The worker was fenced when a statement succeeded, and no worker heartbeat has succeeded since."""

    @classmethod
    def from_config(cls, recovery: RecoveryConfig, *, now: float) -> Self:
        return cls(limit_s=_fence_limit_ms(recovery) / 1_000, last_success_at=now)

    def is_fenced(self, now: float) -> bool:
        return self.is_up or now - self.last_success_at > self.limit_s

    def after_statement(self, sent_at: float) -> Self:
        """Record a successful statement; only a worker heartbeat lowers a raised fence."""
        return replace(self, last_success_at=max(self.last_success_at, sent_at), is_up=self.is_fenced(sent_at))

    def after_worker_heartbeat(self, sent_at: float) -> Self:
        return replace(self, last_success_at=max(self.last_success_at, sent_at), is_up=False)


def effective_worker_heartbeat_ms(recovery: RecoveryConfig) -> float:
    """Worker heartbeat interval: as configured, but well below the fence limit so that an idle worker is not fenced."""
    return min(recovery.effective_worker_heartbeat_ms, _fence_limit_ms(recovery) * FENCE_HEARTBEAT_FRACTION)


def may_assign(recovery: RecoveryConfig, *, took_s: float) -> bool:
    """Whether tasks from a claim that took `took_s` may start; after a longer time others may recover them."""
    return took_s * 1_000 < recovery.running_stale_threshold_ms / 2


def silent_child_limit_s(recovery: RecoveryConfig) -> float:
    """How long a child may be silent and idle before its parent kills it: just less than the running threshold."""
    return (recovery.running_stale_threshold_ms - recovery.runner_heartbeat_interval_ms / 2) / 1_000


def child_heartbeat_interval_s(recovery: RecoveryConfig) -> float:
    """Heartbeat interval of children: one second, or less if the running threshold is very short."""
    return min(MAX_CHILD_HEARTBEAT_S, recovery.running_stale_threshold_ms / 1_000 / MIN_HEARTBEATS_PER_THRESHOLD)


def _fence_limit_ms(recovery: RecoveryConfig) -> int:
    return recovery.claimed_stale_threshold_ms - recovery.claimer_heartbeat_interval_ms


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
        longest_gap = timedelta(milliseconds=MAX_GAP_INTERVALS * recovery.effective_worker_heartbeat_ms)
        return self.last_heartbeat_at <= now <= self.last_heartbeat_at + longest_gap

    def after_heartbeat(self, heartbeat_at: datetime, recovery: RecoveryConfig) -> Self:
        """Extend the series by one heartbeat, or start a new one after a gap or a jump of the database clock."""
        since = self.since if self.is_unbroken(heartbeat_at, recovery) else heartbeat_at
        return replace(self, since=since, last_heartbeat_at=heartbeat_at)

    def outage_grace_until(self, recovery: RecoveryConfig) -> datetime:
        """When this worker has been connected for a full running threshold and may mark tasks stale."""
        return self.since + timedelta(milliseconds=recovery.running_stale_threshold_ms)


# Recovery bounds, connection budget and limits of a worker, as its banner shows them

CHILD_DEATH_BOUND_MS: Final = 1_000
DEDICATED_CONNECTIONS: Final = 2
MIN_POOL_SIZE: Final = 2
"""A reaper pass holds the leader lock on one connection and works on another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBounds:
    """The longest time until the tasks of a dead worker or child are recovered, while another worker is connected."""

    claimed_ms: int
    running_ms: int
    child_death_ms: int = CHILD_DEATH_BOUND_MS

    def describe(self) -> str:
        claimed, running, child = (format_ms(ms) for ms in (self.claimed_ms, self.running_ms, self.child_death_ms))
        return f"if this worker dies: claimed tasks back in {claimed}, running in {running}; if a child dies: {child}"


def recovery_bounds(recovery: RecoveryConfig, *, is_resilient: bool = False) -> RecoveryBounds:
    """Return threshold plus check interval; `is_resilient` for tasks with one of the `resilient_flags`."""
    factor = recovery.resilient_multiplier if is_resilient else 1
    return RecoveryBounds(
        claimed_ms=recovery.claimed_stale_threshold_ms * factor + recovery.check_interval_ms,
        running_ms=recovery.running_stale_threshold_ms * factor + recovery.check_interval_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBudget:
    """The most connections that a worker opens, and that its children add when their tasks send tasks."""

    worker: int
    children: int

    def describe(self) -> str:
        return f"at most {self.worker}, plus {self.children} if tasks send tasks"


def connection_budget(worker: WorkerConfig) -> ConnectionBudget:
    # Only the children's part grows with the number of processes.
    return ConnectionBudget(
        worker=max(worker.parent_pool_size + worker.parent_max_overflow, MIN_POOL_SIZE) + DEDICATED_CONNECTIONS,
        children=worker.processes * worker.child_pool_max_size,
    )


def describe_queue(queue: CustomQueueConfig) -> str:
    """Describe a queue: `mail (priority 1, at most 5 in flight)`."""
    match queue.max_concurrency:
        case None:
            cap = "no cap"
        case 0:
            cap = "closed: no claims"
        case most:
            cap = f"at most {most} in flight"
    return f"{queue.name} (priority {queue.priority}, {cap})"


def describe_limits(app: AppConfig) -> str:
    """Describe the fleet-wide cap, prefetch and lease: `no global cap, prefetch 4, lease 1m`."""
    cap = (
        "no global cap" if app.cluster_wide_cap is None else f"at most {app.cluster_wide_cap} in flight in all workers"
    )
    prefetch = f"prefetch {app.prefetch_buffer}" if app.prefetch_buffer else "no prefetch"
    lease = "" if app.claim_lease_ms is None else f", lease {format_ms(app.claim_lease_ms)}"
    return f"{cap}, {prefetch}{lease}"


def format_ms(ms: int) -> str:
    """Format a duration briefly: `0.3s`, `2m30s`, `2h10m`."""
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{rest_ms / 1_000:.10g}s" if rest_ms else "",
    ]
    return "".join(parts) or "0s"
