"""How patient a judge is, and what it does with the work of the dead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from horsies.model.task import TaskStatus

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.recovery.evidence import Ears, LiveTask, Owner
    from horsies.model.settings.recovery import RecoveryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """Thresholds of silence and what follows them."""

    claimed_threshold: timedelta
    running_threshold: timedelta
    worker_threshold: timedelta
    recovery_delay: timedelta = timedelta(0)
    resilient_multiplier: int = 1
    resilient_flags: frozenset[str] = frozenset()
    max_crashes: int = 10
    waits_for_owner: bool = True
    """Whether an owner with longer thresholds is judged by those; not where the caller has said what silence means."""
    requeues_claimed: bool = True
    settles_running: bool = True

    @classmethod
    def of(cls, config: RecoveryConfig, *, obeys_switches: bool = False) -> Self:
        """A judge with these settings; the `auto_*` switches bind a reaper, never a sweep by hand."""
        return cls(
            claimed_threshold=timedelta(milliseconds=config.claimed_stale_threshold_ms),
            running_threshold=timedelta(milliseconds=config.running_stale_threshold_ms),
            worker_threshold=timedelta(milliseconds=config.worker_stale_threshold_ms),
            recovery_delay=timedelta(milliseconds=config.recovery_delay_ms),
            resilient_multiplier=config.resilient_multiplier,
            resilient_flags=frozenset(config.resilient_flags),
            max_crashes=config.max_crashes,
            requeues_claimed=config.auto_requeue_stale_claimed or not obeys_switches,
            settles_running=config.auto_fail_stale_running or not obeys_switches,
        )

    def may_settle(self, task: LiveTask) -> bool:
        return self.requeues_claimed if task.status is TaskStatus.CLAIMED else self.settles_running

    def is_resilient(self, task: LiveTask) -> bool:
        return any(task.flags.get(flag) is True for flag in self.resilient_flags)

    def threshold(self, task: LiveTask, owner: Owner | None) -> timedelta:
        """The silence that condemns this task: the more patient of judge and owner, longer for a resilient one."""
        if task.status is TaskStatus.CLAIMED:
            base = self._patient(self.claimed_threshold, owner and owner.published.claimed)
        else:
            base = self._patient(self.running_threshold, owner and owner.published.running)
        return base * self.resilient_multiplier if self.is_resilient(task) else base

    def is_lost(self, owner: Owner, ears: Ears, now: datetime) -> bool:
        """Whether a worker counts as lost, or has been declared so: a reason to show, never a verdict on its tasks."""
        if owner.state in {"lost", "stopped"}:
            return owner.state == "lost"
        limit = self._patient(self.worker_threshold, owner.published.worker)
        return now - ears.last_heard(owner.last_heartbeat_at, owner, limit) >= limit

    def _patient(self, mine: timedelta, theirs: timedelta | None) -> timedelta:
        return max(mine, theirs) if theirs is not None and self.waits_for_owner else mine
