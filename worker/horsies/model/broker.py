"""What operations on the broker return: a value, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from horsies.model.result import Result

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.errors import BrokerErrorCode

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOperationError:
    """An operation that failed; `retryable` says whether the same call may succeed later."""

    code: BrokerErrorCode
    message: str
    retryable: bool = False
    exception: BaseException | None = None


BrokerResult: TypeAlias = Result[T, BrokerOperationError]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePing:
    """The database answered."""

    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPong:
    """A worker answered."""

    worker_id: str
    hostname: str
    pid: int
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStateSnapshot:
    """What a worker wrote about itself at one moment."""

    worker_id: str
    snapshot_at: datetime
    hostname: str
    pid: int
    processes: int
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queues: list[str]
    queue_priorities: dict[str, int]
    queue_max_concurrency: dict[str, int | None]
    recovery_config: dict[str, object]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    memory_percent: float | None
    cpu_percent: float | None
    children_memory_mb: float | None
    worker_started_at: datetime
