"""Settings of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

from pydantic import Field, Strict

from horsies.errors import ConfigurationError, ErrorCode, raise_together
from horsies.model.settings.base import Fault, RuleText, Seconds, Settings, at_least, between
from horsies.model.settings.broker import DatabaseUrl
from horsies.model.task import DEFAULT_QUEUE

if TYPE_CHECKING:
    from horsies.model.settings.app import AppConfig, ProjectConfig


def usable_cpus() -> int:
    """Number of CPUs that this process may use; in a container often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


_QUEUES: Final = RuleText("a list of queue names, not empty", unset="all")


class WorkerSettings(Settings):
    """The `[worker]` section: processes, queues, limits and shutdown."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_WORKER

    processes: Annotated[int, at_least(1)] = Field(default_factory=usable_cpus)
    # An empty list is an error: a script with an unset variable would otherwise serve all queues.
    queues: Annotated[list[str] | None, Field(min_length=1), _QUEUES] = None
    max_claim_batch: Annotated[int, at_least(0)] = 0
    max_claim_per_worker: Annotated[int, at_least(0)] = 0
    max_tasks_per_child: Annotated[int, at_least(0)] = 0
    max_memory_per_child_mb: Annotated[int | None, at_least(1)] = None
    max_chunk: Annotated[int, between(1, 64)] = 64
    async_concurrency: Annotated[int, between(1, 1_000)] = 10
    grace_s: Annotated[Seconds | None, Field(ge=0), RuleText("a number of seconds of at least 0")] = 300
    kill_wait_s: Annotated[Seconds, Field(ge=0), RuleText("a number of seconds of at least 0")] = 5
    snapshot_interval_ms: Annotated[int, between(1_000, 300_000)] = 30_000
    with_scheduler: Annotated[bool, Strict()] = False


class WorkerConfig(WorkerSettings):
    """The `[worker]` section combined with the app settings that a worker needs; URLs are shown masked."""

    dsn: DatabaseUrl
    session_dsn: DatabaseUrl | None = None
    pgbouncer_transaction_mode: Annotated[bool, Strict()] = False
    parent_pool_size: Annotated[int, at_least(1)] = 3
    parent_max_overflow: Annotated[int, at_least(0)] = 2
    child_pool_min_size: Annotated[int, at_least(0)] = 0
    child_pool_max_size: Annotated[int, at_least(1)] = 2
    app_locator: str | None = None
    imports: list[str] = Field(default_factory=list[str])

    @classmethod
    def of(cls, app: AppConfig, worker: WorkerSettings, project: ProjectConfig) -> Self:
        """Combine the settings; `worker.queues` defaults to all configured queues, an unknown queue is HRS-103."""
        configured = [queue.name for queue in app.custom_queues or ()] or [DEFAULT_QUEUE]
        _check_queues(worker.queues or (), configured)
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


def _check_queues(queues: Iterable[str], configured: list[str]) -> None:
    hint = "configured queues: " + ", ".join(configured)
    raise_together(
        "worker.queues",
        [
            ConfigurationError(f"worker.queues: no queue {name!r}", code=ErrorCode.TASK_INVALID_QUEUE, hint=hint)
            for name in queues
            if name not in configured
        ],
    )


class WorkerResilienceConfig(Settings):
    """Delays between connection attempts while the database is unavailable, and the interval of polling for tasks."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_RESILIENCE

    db_retry_initial_ms: Annotated[int, between(100, 60_000)] = 500
    db_retry_max_ms: Annotated[int, between(500, 300_000)] = 30_000
    db_retry_max_attempts: Annotated[int, between(0, 10_000)] = 0
    notify_poll_interval_ms: Annotated[int, between(1_000, 300_000)] = 5_000

    def contradictions(self) -> Iterator[Fault]:
        if self.db_retry_max_ms < self.db_retry_initial_ms:
            text = f"must not be less than db_retry_initial_ms ({self.db_retry_initial_ms}), got {self.db_retry_max_ms}"
            yield Fault.between("db_retry_max_ms", "db_retry_initial_ms", text=text)
