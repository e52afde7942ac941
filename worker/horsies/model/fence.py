"""When a worker that was cut off stops taking work, and since when it has listened without a break.

Instants that a worker compares with each other are seconds of its monotonic clock; those that others judge by are the
database's.
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
"""A gap between two worker beats that is longer than so many intervals breaks the series."""
FENCE_HEARTBEAT_FRACTION: Final = 0.75
"""The part of the fence's limit after which an idle worker beats at the latest."""

MAX_CHILD_HEARTBEAT_S: Final = 1.0
MIN_HEARTBEATS_PER_THRESHOLD: Final = 5
"""At least so many beats of a child fit into the silence that condemns it."""


def _fence_limit_ms(recovery: RecoveryConfig) -> int:
    return recovery.claimed_stale_threshold_ms - recovery.claimer_heartbeat_interval_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Keeps a worker that was cut off from claiming and starting, for others may soon take its claims for lost.

    Each success counts from the moment its statement was sent: an answer read after a long sleep proves nothing about
    the time asleep.
    """

    limit_s: float
    last_success_at: float
    is_up: bool = False
    """It was up when a statement succeeded, and no worker beat has since."""

    @classmethod
    def from_config(cls, recovery: RecoveryConfig, *, now: float) -> Self:
        return cls(limit_s=_fence_limit_ms(recovery) / 1_000, last_success_at=now)

    def is_fenced(self, now: float) -> bool:
        return self.is_up or now - self.last_success_at > self.limit_s

    def after_statement(self, sent_at: float) -> Self:
        """Any statement shows that the database is there; it does not take a fence down."""
        return replace(self, last_success_at=max(self.last_success_at, sent_at), is_up=self.is_fenced(sent_at))

    def after_worker_heartbeat(self, sent_at: float) -> Self:
        return replace(self, last_success_at=max(self.last_success_at, sent_at), is_up=False)


def effective_worker_heartbeat_ms(recovery: RecoveryConfig) -> float:
    """How often the worker's row is beaten: as set, and always well before an idle worker would meet its own fence."""
    return min(recovery.effective_worker_heartbeat_ms, _fence_limit_ms(recovery) * FENCE_HEARTBEAT_FRACTION)


def may_assign(recovery: RecoveryConfig, *, took_s: float) -> bool:
    """Whether rows that a start returned are still safely ours, or have to be given back."""
    return took_s * 1_000 < recovery.running_stale_threshold_ms / 2


def silent_child_limit_s(recovery: RecoveryConfig) -> float:
    """How long a child may be silent and idle before its own parent ends it: shortly before any judge would act."""
    return (recovery.running_stale_threshold_ms - recovery.runner_heartbeat_interval_ms / 2) / 1_000


def child_heartbeat_interval_s(recovery: RecoveryConfig) -> float:
    """How often children are heard: every second, or oftener where a threshold is so short that a second counts."""
    return min(MAX_CHILD_HEARTBEAT_S, recovery.running_stale_threshold_ms / 1_000 / MIN_HEARTBEATS_PER_THRESHOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSeries:
    """An unbroken series of worker beats, in database time. Only silence after `since` counts against others."""

    since: datetime
    last_heartbeat_at: datetime

    @classmethod
    def starting_at(cls, beat_at: datetime) -> Self:
        return cls(since=beat_at, last_heartbeat_at=beat_at)

    def is_unbroken(self, now: datetime, recovery: RecoveryConfig) -> bool:
        """Whether a beat at this instant of the database would still belong to the series."""
        longest_gap = timedelta(milliseconds=MAX_GAP_INTERVALS * recovery.effective_worker_heartbeat_ms)
        return self.last_heartbeat_at <= now <= self.last_heartbeat_at + longest_gap

    def after_heartbeat(self, beat_at: datetime, recovery: RecoveryConfig) -> Self:
        """The series with one more beat, or a new one after a gap or a jump of the database's clock."""
        since = self.since if self.is_unbroken(beat_at, recovery) else beat_at
        return replace(self, since=since, last_heartbeat_at=beat_at)

    def outage_grace_until(self, recovery: RecoveryConfig) -> datetime:
        """Until then this worker has not listened long enough to judge by silence."""
        return self.since + timedelta(milliseconds=recovery.running_stale_threshold_ms)


# What a worker promises and takes, as arithmetic on its settings, and in the words of its first lines.

CHILD_DEATH_BOUND_MS: Final = 1_000
DEDICATED_CONNECTIONS: Final = 2
MIN_POOL_SIZE: Final = 2
"""A pass of the reaper holds one connection for its turn and works on another, however small the pool is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBounds:
    """After how long at most the work of the dead is settled, while some worker listens."""

    claimed_ms: int
    running_ms: int
    child_death_ms: int = CHILD_DEATH_BOUND_MS

    def describe(self) -> str:
        claimed, running, child = (format_seconds(ms) for ms in (self.claimed_ms, self.running_ms, self.child_death_ms))
        return f"CLAIMED <= {claimed}, RUNNING <= {running}, child death <= {child}"


def recovery_bounds(recovery: RecoveryConfig, *, is_resilient: bool = False) -> RecoveryBounds:
    """Threshold plus check interval; `is_resilient` for tasks that carry one of the `resilient_flags`."""
    factor = recovery.resilient_multiplier if is_resilient else 1
    return RecoveryBounds(
        claimed_ms=recovery.claimed_stale_threshold_ms * factor + recovery.check_interval_ms,
        running_ms=recovery.running_stale_threshold_ms * factor + recovery.check_interval_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBudget:
    """The most connections that a worker opens, and those that its children add when their tasks send tasks."""

    worker: int
    children: int

    def describe(self) -> str:
        return f"at most {self.worker}, and {self.children} more while tasks send tasks"


def connection_budget(worker: WorkerConfig) -> ConnectionBudget:
    """The same for any number of processes, but for what their tasks send."""
    return ConnectionBudget(
        worker=max(worker.parent_pool_size + worker.parent_max_overflow, MIN_POOL_SIZE) + DEDICATED_CONNECTIONS,
        children=worker.processes * worker.child_pool_max_size,
    )


def describe_queue(queue: CustomQueueConfig) -> str:
    """`mail (priority 1, at most 5 in flight in the fleet)`."""
    return f"{queue.name} (priority {queue.priority}, {_describe_cap(queue.max_concurrency)})"


def describe_limits(app: AppConfig) -> str:
    """What bounds the whole fleet and what is claimed ahead, beside the caps of single queues."""
    fleet = "no cap" if app.cluster_wide_cap is None else f"at most {app.cluster_wide_cap} in flight"
    ahead = f"{app.prefetch_buffer} claimed ahead" if app.prefetch_buffer else "nothing claimed ahead"
    lease = "no lease" if app.claim_lease_ms is None else f"lease {format_seconds(app.claim_lease_ms)}"
    return f"fleet: {fleet}; {ahead}, {lease}"


def format_seconds(ms: int) -> str:
    return f"{ms / 1_000:.10g} s"


def _describe_cap(max_concurrency: int | None) -> str:
    match max_concurrency:
        case None:
            return "no cap"
        case 0:
            return "closed: nothing is claimed"
        case most:
            return f"at most {most} in flight in the fleet"
