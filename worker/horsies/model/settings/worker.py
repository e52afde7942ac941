"""Settings of a worker."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, StrictBool, StrictInt

from horsies.errors import ConfigurationError, ErrorCode, raise_together
from horsies.model.settings.base import Fault, RuleText, Seconds, Settings
from horsies.model.settings.broker import DatabaseUrl
from horsies.model.task import DEFAULT_QUEUE

if TYPE_CHECKING:
    from horsies.model.settings.app import AppConfig, ProjectConfig


def usable_cpus() -> int:
    """Number of CPUs that this process may use; in a container often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class WorkerSettings(Settings):
    """The `[worker]` section: processes, queues, limits and shutdown."""

    fault_code = ErrorCode.CONFIG_INVALID_WORKER

    processes: StrictInt = Field(
        default_factory=usable_cpus, ge=1, examples=[4], description="child processes; default: the number of CPUs"
    )
    # An empty list is an error: a script with an unset variable would otherwise serve all queues.
    queues: Annotated[list[str] | None, RuleText("a list of queue names, not empty")] = Field(
        default=None, min_length=1, examples=[["mail", "reports"]], description="queues to serve; default: all"
    )
    max_claim_batch: StrictInt = Field(
        default=0, ge=0, description="most tasks claimed per queue in one pass; 0 fills the free slots"
    )
    max_claim_per_worker: StrictInt = Field(
        default=0, ge=0, description="most claimed tasks waiting to start; 0 means slots + prefetch_buffer"
    )
    max_tasks_per_child: StrictInt = Field(
        default=0, ge=0, description="replace a child process after this many tasks; 0 means never"
    )
    max_memory_per_child_mb: StrictInt | None = Field(
        default=None,
        ge=1,
        examples=[512],
        description="replace a child process above this memory use, in MB, after its current tasks; default: no limit",
    )
    max_chunk: StrictInt = Field(default=64, ge=1, le=64, description="most short tasks sent to a child at once")
    async_concurrency: StrictInt = Field(
        default=10, ge=1, le=1_000, description="async tasks that run concurrently in one child process"
    )
    grace_s: Seconds | None = Field(
        default=300, ge=0, description='seconds for running tasks to finish on shutdown; "none" means no limit'
    )
    kill_wait_s: Seconds = Field(default=5, ge=0, description="seconds to wait for killed processes to exit")
    snapshot_interval_ms: StrictInt = Field(
        default=30_000, ge=1_000, le=300_000, description="milliseconds between snapshots of the worker's state"
    )
    with_scheduler: StrictBool | None = Field(
        default=None,
        examples=[True],
        description="fire schedules in this worker; default: true if the app has schedules",
    )


class WorkerConfig(WorkerSettings):
    """The `[worker]` section combined with the app settings that a worker needs; URLs are shown masked."""

    dsn: DatabaseUrl
    session_dsn: DatabaseUrl | None = None
    pgbouncer_transaction_mode: StrictBool = False
    parent_pool_size: StrictInt = Field(default=3, ge=1)
    parent_max_overflow: StrictInt = Field(default=2, ge=0)
    child_pool_min_size: StrictInt = Field(default=0, ge=0)
    child_pool_max_size: StrictInt = Field(default=2, ge=1)
    app_locator: str | None = None
    imports: list[str] = Field(default_factory=list[str])

    @classmethod
    def of(cls, app: "AppConfig", worker: WorkerSettings, project: "ProjectConfig") -> Self:
        """Combine the settings; `worker.queues` defaults to all configured queues, an unknown queue is HRS-103."""
        configured = [queue.name for queue in app.custom_queues or ()] or [DEFAULT_QUEUE]
        check_queues("worker.queues", worker.queues or (), configured)
        section: dict[str, Any] = dict(worker) | {"queues": worker.queues or configured}
        return cls(
            **section,
            dsn=app.broker.database_url,
            session_dsn=app.broker.session_database_url,
            pgbouncer_transaction_mode=app.broker.pgbouncer_transaction_mode,
            parent_pool_size=app.broker.worker_pool_size,
            parent_max_overflow=app.broker.worker_max_overflow,
            child_pool_min_size=app.broker.worker_child_pool_min_size,
            child_pool_max_size=app.broker.worker_child_pool_max_size,
            app_locator=project.locator,
            imports=project.modules,
        )


def check_queues(label: str, queues: Iterable[str], configured: Sequence[str]) -> None:
    """Raise for queues that are not configured: a typo would look like a queue without tasks."""
    hint = "configured queues: " + ", ".join(configured)
    unknown = [f"{label}: no queue {name!r}" for name in queues if name not in configured]
    raise_together(label, [ConfigurationError(text, code=ErrorCode.TASK_INVALID_QUEUE, hint=hint) for text in unknown])


class WorkerResilienceConfig(Settings):
    """Delays between connection attempts while the database is unavailable, and the interval of polling for tasks."""

    fault_code = ErrorCode.CONFIG_INVALID_RESILIENCE

    db_retry_initial_ms: StrictInt = Field(
        default=500, ge=100, le=60_000, description="first delay before reconnecting to the database, in milliseconds"
    )
    db_retry_max_ms: StrictInt = Field(
        default=30_000, ge=500, le=300_000, description="longest delay between reconnection attempts, in milliseconds"
    )
    db_retry_max_attempts: StrictInt = Field(
        default=0, ge=0, le=10_000, description="reconnection attempts before a worker exits; 0 means no limit"
    )
    notify_poll_interval_ms: StrictInt = Field(
        default=5_000,
        ge=1_000,
        le=300_000,
        description="milliseconds between polls for work that no notification announced",
    )

    def contradictions(self) -> Iterator[Fault]:
        if self.db_retry_max_ms < self.db_retry_initial_ms:
            text = f"must not be less than db_retry_initial_ms ({self.db_retry_initial_ms}), got {self.db_retry_max_ms}"
            yield Fault.between("db_retry_max_ms", "db_retry_initial_ms", text=text)
