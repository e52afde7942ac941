"""Recovery bounds, connection budget and limits of a worker, as its start-up banner shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.model.settings.app import AppConfig, CustomQueueConfig
    from horsies.model.settings.recovery import RecoveryConfig
    from horsies.model.settings.worker import WorkerConfig

CHILD_DEATH_BOUND_MS: Final = 1_000  # promised for any settings: the parent sees the exit itself
DEDICATED_CONNECTIONS: Final = 2  # for heartbeats and for LISTEN: neither may wait for a free pool connection
MIN_POOL_SIZE: Final = 2  # a reaper pass holds the leader lock on one connection and works on another


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
    # A task may become stale just after a pass has looked, so the next pass adds a whole interval.
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
        f"{minutes:02}m" if minutes and hours else f"{minutes}m" if minutes else "",
        f"{rest_ms / 1_000:{'02' if minutes or hours else ''}.10g}s" if rest_ms else "",
    ]
    return "".join(parts) or "0s"
