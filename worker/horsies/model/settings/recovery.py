"""Settings for heartbeats, recovery of dead workers' tasks, and retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import Field, Strict

from horsies.errors import ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings, between

HeartbeatInterval = Annotated[int, between(1_000, 120_000)]


class RecoveryConfig(Settings):
    """Heartbeat intervals, thresholds after which claims, tasks and workers are stale, and retention windows."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_RECOVERY

    auto_requeue_stale_claimed: Annotated[bool, Strict()] = True
    claimed_stale_threshold_ms: Annotated[int, between(1_000, 3_600_000)] = 120_000
    auto_fail_stale_running: Annotated[bool, Strict()] = True
    running_stale_threshold_ms: Annotated[int, between(1_000, 7_200_000)] = 300_000
    check_interval_ms: Annotated[int, between(1_000, 600_000)] = 30_000
    runner_heartbeat_interval_ms: HeartbeatInterval = 30_000
    claimer_heartbeat_interval_ms: HeartbeatInterval = 30_000
    heartbeat_retention_hours: Annotated[int | None, between(1, 8_760)] = 24
    worker_state_retention_hours: Annotated[int | None, between(1, 8_760)] = 168
    terminal_record_retention_hours: Annotated[int | None, between(1, 43_800)] = 720
    recovery_delay_ms: Annotated[int, between(0, 3_600_000)] = 0
    resilient_multiplier: Annotated[int, between(1, 100)] = 3
    resilient_flags: Annotated[list[str], RuleText("a list of flag names")] = Field(
        default_factory=lambda: ["infrastructure_resilient"]
    )
    max_crashes: Annotated[int, between(1, 1_000)] = 10
    outage_grace: Annotated[bool, Strict()] = True
    worker_heartbeat_interval_ms: Annotated[int | None, between(1_000, 120_000)] = None
    worker_stale_threshold_ms: Annotated[int, between(1_000, 7_200_000)] = 300_000

    @property
    def effective_worker_heartbeat_ms(self) -> int:
        """Interval of the worker's own heartbeat: as set, else the shorter of claimer and runner interval."""
        shortest = min(self.claimer_heartbeat_interval_ms, self.runner_heartbeat_interval_ms)
        return self.worker_heartbeat_interval_ms or shortest

    def contradictions(self) -> Iterator[Fault]:
        claimer, runner = "claimer_heartbeat_interval_ms", "runner_heartbeat_interval_ms"
        claimer_ms, runner_ms = self.claimer_heartbeat_interval_ms, self.runner_heartbeat_interval_ms
        worker_ms = self.effective_worker_heartbeat_ms
        if self.claimed_stale_threshold_ms < 2 * claimer_ms:
            yield _too_short("claimed_stale_threshold_ms", claimer, interval_ms=claimer_ms)
        if self.running_stale_threshold_ms < 2 * runner_ms:
            yield _too_short("running_stale_threshold_ms", runner, interval_ms=runner_ms)
        if self.worker_stale_threshold_ms < 2 * worker_ms:
            intervals = ("worker_heartbeat_interval_ms",) if self.worker_heartbeat_interval_ms else (claimer, runner)
            yield _too_short("worker_stale_threshold_ms", *intervals, interval_ms=worker_ms)
        if worker_ms > min(claimer_ms, runner_ms):
            text = f"must not be longer than the interval of the claimer ({claimer_ms}) or the runner ({runner_ms})"
            yield Fault.between("worker_heartbeat_interval_ms", claimer, runner, text=f"{text}, got {worker_ms}")


def _too_short(threshold: str, *intervals: str, interval_ms: int) -> Fault:
    text = f"must be at least twice {' or '.join(intervals)}, that is {2 * interval_ms} or more"
    hint = "otherwise a single late heartbeat would make healthy tasks stale"
    return Fault.between(threshold, *intervals, text=text, hint=hint)


# Retention

_WINDOWS = ("heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours")


class RetentionConfig(Settings):
    """Interval and size of retention passes, and the windows of events, audit entries and paused workflows."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_RETENTION
    misplaced_keys: ClassVar[Mapping[str, str]] = {window: f"recovery.{window}" for window in _WINDOWS}

    interval_s: Annotated[int, between(60, 86_400)] = 3_600
    batch_size: Annotated[int, between(50, 10_000)] = 500
    pass_budget_s: Annotated[int, between(1, 3_600)] = 60
    event_retention_hours: Annotated[int | None, between(1, 8_760)] = 168
    audit_retention_hours: Annotated[int | None, between(1, 87_600)] = 8_760
    paused_workflow_expire_hours: Annotated[int | None, between(1, 8_760)] = None
