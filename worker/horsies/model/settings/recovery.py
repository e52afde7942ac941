"""Settings for heartbeats, recovery of dead workers' tasks, and retention."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field, StrictBool, StrictInt

from horsies.errors import ErrorCode
from horsies.model.settings.base import Fault, Settings

INFRASTRUCTURE_RESILIENT_FLAG = "infrastructure_resilient"
"""The task flag that selects the longer thresholds, unless `resilient_flags` lists others."""


class RecoveryConfig(Settings):
    """Heartbeat intervals, thresholds after which claims, tasks and workers are stale, and retention windows."""

    fault_code = ErrorCode.CONFIG_INVALID_RECOVERY

    auto_requeue_stale_claimed: StrictBool = Field(
        default=True, description="requeue claimed tasks whose worker stopped sending heartbeats"
    )
    claimed_stale_threshold_ms: StrictInt = Field(
        default=120_000,
        ge=1_000,
        le=3_600_000,
        description="milliseconds without a heartbeat until a claimed task is stale",
    )
    auto_fail_stale_running: StrictBool = Field(
        default=True, description="retry or fail running tasks whose worker stopped sending heartbeats"
    )
    running_stale_threshold_ms: StrictInt = Field(
        default=300_000,
        ge=1_000,
        le=7_200_000,
        description="milliseconds without a heartbeat until a running task is stale",
    )
    check_interval_ms: StrictInt = Field(
        default=30_000, ge=1_000, le=600_000, description="milliseconds between passes of the reaper"
    )
    runner_heartbeat_interval_ms: StrictInt = Field(
        default=30_000, ge=1_000, le=120_000, description="milliseconds between heartbeats of running tasks"
    )
    claimer_heartbeat_interval_ms: StrictInt = Field(
        default=30_000, ge=1_000, le=120_000, description="milliseconds between heartbeats of claimed tasks"
    )
    heartbeat_retention_hours: StrictInt | None = Field(
        default=24, ge=1, le=8_760, description='hours to keep heartbeats; "none" keeps them forever'
    )
    worker_state_retention_hours: StrictInt | None = Field(
        default=168, ge=1, le=8_760, description='hours to keep worker snapshots; "none" keeps them forever'
    )
    terminal_record_retention_hours: StrictInt | None = Field(
        default=720,
        ge=1,
        le=43_800,
        description='hours to keep finished tasks and workflows; "none" keeps them forever',
    )
    recovery_delay_ms: StrictInt = Field(
        default=0, ge=0, le=3_600_000, description="milliseconds before a recovered task may start again"
    )
    resilient_multiplier: StrictInt = Field(
        default=3, ge=1, le=100, description="factor for the stale thresholds of tasks with a resilient flag"
    )
    resilient_flags: list[str] = Field(
        default=[INFRASTRUCTURE_RESILIENT_FLAG],
        description="task flags that select the longer thresholds; an empty list disables them",
    )
    max_crashes: StrictInt = Field(
        default=10, ge=1, le=1_000, description="crashes after which a task fails with POISON_TASK"
    )
    outage_grace: StrictBool = Field(
        default=True, description="pause recovery after the database was unreachable, until heartbeats are back"
    )
    worker_heartbeat_interval_ms: StrictInt | None = Field(
        default=None,
        ge=1_000,
        le=120_000,
        examples=[30_000],
        description="milliseconds between worker heartbeats; default: the shorter of the two above",
    )
    worker_stale_threshold_ms: StrictInt = Field(
        default=300_000, ge=1_000, le=7_200_000, description="milliseconds without a heartbeat until a worker is stale"
    )

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

    fault_code = ErrorCode.CONFIG_INVALID_RETENTION
    misplaced_keys: ClassVar[Mapping[str, str]] = {window: f"recovery.{window}" for window in _WINDOWS}

    interval_s: StrictInt = Field(default=3_600, ge=60, le=86_400, description="seconds between clean-up passes")
    batch_size: StrictInt = Field(default=500, ge=50, le=10_000, description="rows deleted per statement")
    pass_budget_s: StrictInt = Field(
        default=60, ge=1, le=3_600, description="longest clean-up pass, in seconds; the next pass continues"
    )
    event_retention_hours: StrictInt | None = Field(
        default=168, ge=1, le=8_760, description='hours to keep events; "none" keeps them forever'
    )
    audit_retention_hours: StrictInt | None = Field(
        default=8_760, ge=1, le=87_600, description='hours to keep audit entries; "none" keeps them forever'
    )
    paused_workflow_expire_hours: StrictInt | None = Field(
        default=None,
        ge=1,
        le=8_760,
        examples=[720],
        description="hours after which a paused workflow expires; default: never",
    )
