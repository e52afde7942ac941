"""How a worker bears a database that is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from horsies.errors import ErrorCode
from horsies.model.settings.base import Settings
from horsies.model.settings.fault import Fault
from horsies.model.settings.ranges import between

if TYPE_CHECKING:
    from collections.abc import Iterator


class WorkerResilienceConfig(Settings):
    """The pauses between tries to reach the database, and the poll that stands in for lost notifications."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_RESILIENCE

    db_retry_initial_ms: Annotated[int, between(100, 60_000)] = 500
    db_retry_max_ms: Annotated[int, between(500, 300_000)] = 30_000
    db_retry_max_attempts: Annotated[int, between(0, 10_000)] = 0
    notify_poll_interval_ms: Annotated[int, between(1_000, 300_000)] = 5_000

    def contradictions(self) -> Iterator[Fault]:
        if self.db_retry_max_ms < self.db_retry_initial_ms:
            text = f"must not be less than db_retry_initial_ms ({self.db_retry_initial_ms}), got {self.db_retry_max_ms}"
            yield Fault.of("db_retry_max_ms", "db_retry_initial_ms", text=text)
