"""What a worker promises and takes, as arithmetic on its settings, and in the words of its first lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.model.settings.app import AppConfig
    from horsies.model.settings.queues import CustomQueueConfig
    from horsies.model.settings.recovery import RecoveryConfig
    from horsies.model.settings.worker import WorkerConfig

CHILD_DEATH_MS: Final = 1_000
LISTENER_AND_BEATS: Final = 2
FEWEST_OF_A_POOL: Final = 2
"""A pass of the reaper holds one connection for its turn and works on another, however small the pool is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryBounds:
    """After how long at most the work of the dead is settled, while some worker listens."""

    claimed_ms: int
    running_ms: int
    child_death_ms: int = CHILD_DEATH_MS

    def in_words(self) -> str:
        claimed, running, child = (in_seconds(ms) for ms in (self.claimed_ms, self.running_ms, self.child_death_ms))
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

    def in_words(self) -> str:
        return f"at most {self.worker}, and {self.children} more while tasks send tasks"


def connection_budget(worker: WorkerConfig) -> ConnectionBudget:
    """The same for any number of processes, but for what their tasks send."""
    return ConnectionBudget(
        worker=max(worker.parent_pool_size + worker.parent_max_overflow, FEWEST_OF_A_POOL) + LISTENER_AND_BEATS,
        children=worker.processes * worker.child_pool_max_size,
    )


def queue_in_words(queue: CustomQueueConfig) -> str:
    """`mail (priority 1, at most 5 in flight in the fleet)`."""
    return f"{queue.name} (priority {queue.priority}, {_cap_in_words(queue.max_concurrency)})"


def caps_in_words(app: AppConfig) -> str:
    """What bounds the whole fleet and what is claimed ahead, beside the caps of single queues."""
    fleet = "no cap" if app.cluster_wide_cap is None else f"at most {app.cluster_wide_cap} in flight"
    ahead = f"{app.prefetch_buffer} claimed ahead" if app.prefetch_buffer else "nothing claimed ahead"
    lease = "no lease" if app.claim_lease_ms is None else f"lease {in_seconds(app.claim_lease_ms)}"
    return f"fleet: {fleet}; {ahead}, {lease}"


def in_seconds(ms: int) -> str:
    return f"{ms / 1_000:.10g} s"


def _cap_in_words(max_concurrency: int | None) -> str:
    match max_concurrency:
        case None:
            return "no cap"
        case 0:
            return "closed: nothing is claimed"
        case most:
            return f"at most {most} in flight in the fleet"
