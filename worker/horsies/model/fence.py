"""The fence of a disconnected worker, and heartbeat intervals; times are those of its monotonic clock, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from horsies.model.settings.recovery import RecoveryConfig


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
        return self._after_success(sent_at, is_up=self.is_fenced(sent_at))

    def after_worker_heartbeat(self, sent_at: float) -> Self:
        return self._after_success(sent_at, is_up=False)

    def _after_success(self, sent_at: float, *, is_up: bool) -> Self:
        # Not `replace`, which takes several times as long: this runs after each statement.
        return type(self)(limit_s=self.limit_s, last_success_at=max(self.last_success_at, sent_at), is_up=is_up)


def effective_worker_heartbeat_ms(recovery: RecoveryConfig) -> float:
    """Worker heartbeat interval: as configured, but well below the fence limit so that an idle worker is not fenced."""
    return min(recovery.effective_worker_heartbeat_ms, _fence_limit_ms(recovery) * FENCE_HEARTBEAT_FRACTION)


def heartbeat_timeout_s(recovery: RecoveryConfig, *, claim_lease_ms: int | None = None) -> float:
    """Statement timeout of heartbeats: a third of the shortest threshold or of the lease.

    Intervals are at most half a threshold, so a heartbeat that got no answer leaves a sixth of it for a second try.
    """
    thresholds_ms = [
        recovery.claimed_stale_threshold_ms,
        recovery.running_stale_threshold_ms,
        recovery.worker_stale_threshold_ms,
    ]
    if claim_lease_ms is not None:
        thresholds_ms.append(claim_lease_ms)
    return min(thresholds_ms) / 3_000


def may_assign(recovery: RecoveryConfig, *, took_s: float) -> bool:
    """Whether tasks from a claim that took `took_s` may start; after a longer time others may recover them."""
    # The other half is for the first heartbeat: its interval is at most half the threshold (RecoveryConfig).
    return took_s * 1_000 < recovery.running_stale_threshold_ms / 2


def silent_child_limit_s(recovery: RecoveryConfig) -> float:
    """How long a child may be silent and idle before its parent kills it: just less than the running threshold."""
    # Half an interval before other workers may recover its tasks: the process must be dead before they run again.
    return (recovery.running_stale_threshold_ms - recovery.runner_heartbeat_interval_ms / 2) / 1_000


def child_heartbeat_interval_s(recovery: RecoveryConfig) -> float:
    """Heartbeat interval of children: one second, or less if the running threshold is very short."""
    return min(MAX_CHILD_HEARTBEAT_S, recovery.running_stale_threshold_ms / 1_000 / MIN_HEARTBEATS_PER_THRESHOLD)


def _fence_limit_ms(recovery: RecoveryConfig) -> int:
    # The last heartbeat of a claim may be a whole interval older than the last successful statement.
    return recovery.claimed_stale_threshold_ms - recovery.claimer_heartbeat_interval_ms
