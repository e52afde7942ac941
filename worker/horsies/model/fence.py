"""The fence of a disconnected worker, and heartbeat intervals; times are those of its monotonic clock, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.model.settings.recovery import RecoveryConfig


FENCE_HEARTBEAT_FRACTION: Final = 0.75
"""An idle worker sends a heartbeat after this fraction of the fence limit at the latest."""

MAX_CHILD_HEARTBEAT_S: Final = 1.0
MIN_HEARTBEATS_PER_THRESHOLD: Final = 5
"""A child sends at least this many heartbeats per running threshold."""


class Fence:
    """Stops a disconnected worker from claiming and starting tasks, because others may recover its claims soon.

    A success counts from the time its statement was sent: a response read after the machine was suspended says nothing
    about the time in between.
    """

    def __init__(self, recovery: RecoveryConfig, *, now: float) -> None:
        self._limit_s = _fence_limit_ms(recovery) / 1_000
        # The other half is for the first heartbeat: its interval is at most half the threshold (RecoveryConfig).
        self._max_claim_s = recovery.running_stale_threshold_ms / 2_000
        self.last_success_at = now
        self._is_up = False
        """The worker was fenced when a statement succeeded, and no worker heartbeat has succeeded since."""

    def is_fenced(self, now: float) -> bool:
        return self._is_up or now - self.last_success_at > self._limit_s

    def record_statement(self, sent_at: float) -> None:
        """A statement sent at `sent_at` has succeeded; only a worker heartbeat lowers a raised fence."""
        self._is_up = self.is_fenced(sent_at)
        self.last_success_at = max(self.last_success_at, sent_at)

    def record_heartbeat(self, sent_at: float) -> None:
        """A worker heartbeat sent at `sent_at` has succeeded."""
        self._is_up = False
        self.last_success_at = max(self.last_success_at, sent_at)

    def may_assign(self, *, took_s: float) -> bool:
        """Whether tasks from a claim that took `took_s` may start; after a longer time others may recover them."""
        return took_s < self._max_claim_s


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
