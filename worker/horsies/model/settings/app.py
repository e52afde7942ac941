"""Everything an application decides about its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, Strict

from horsies.errors import ErrorCode
from horsies.model.codes import is_upper_snake
from horsies.model.settings.base import Settings
from horsies.model.settings.broker import PostgresConfig
from horsies.model.settings.fault import Fault
from horsies.model.settings.payload import PayloadPolicy
from horsies.model.settings.queues import CustomQueueConfig, QueueMode
from horsies.model.settings.ranges import at_least
from horsies.model.settings.recovery import RecoveryConfig
from horsies.model.settings.resilience import WorkerResilienceConfig
from horsies.model.settings.retention import RetentionConfig
from horsies.model.settings.schedule import ScheduleConfig
from horsies.model.settings.wording import Says

_MODE = ErrorCode.CONFIG_INVALID_QUEUE_MODE
_CAP = ErrorCode.CONFIG_INVALID_CLUSTER_CAP
_PREFETCH = ErrorCode.CONFIG_INVALID_PREFETCH
_MAPPER = ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
_VALUE = ErrorCode.CLI_INVALID_ARGS


def _upper_snake(code: str) -> str:
    if not is_upper_snake(code):
        raise ValueError(code)
    return code


UpperSnake = Annotated[str, Strict(), AfterValidator(_upper_snake)]


class AppConfig(Settings):
    """The settings of one application; a frozen value that reads no file by itself."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "payload_warn_bytes": "payload=PayloadPolicy(warn_bytes=…)",
        "payload_reject_bytes": "payload=PayloadPolicy(reject_bytes=…)",
        "database_url": "broker=PostgresConfig(database_url=…)",
        "locator": "app.locator in horsies.toml",
        "modules": "app.modules in horsies.toml, or Horsies.discover_tasks(…)",
    }

    queue_mode: Annotated[QueueMode, _MODE] = QueueMode.DEFAULT
    custom_queues: Annotated[list[CustomQueueConfig] | None, _MODE] = None
    broker: PostgresConfig = PostgresConfig()
    cluster_wide_cap: Annotated[int | None, at_least(1), _CAP] = None
    prefetch_buffer: Annotated[int, at_least(0), _PREFETCH] = 0
    claim_lease_ms: Annotated[int | None, at_least(1), _PREFETCH] = None
    max_claim_renew_age_ms: Annotated[int, at_least(1), _PREFETCH] = 180_000
    payload: PayloadPolicy = PayloadPolicy()
    recovery: RecoveryConfig = RecoveryConfig()
    resilience: WorkerResilienceConfig = WorkerResilienceConfig()
    retention: RetentionConfig = RetentionConfig()
    schedule: ScheduleConfig | None = None
    exception_mapper: Annotated[
        Mapping[type[BaseException], UpperSnake],
        Says("a mapping of exception classes to codes in UPPER_SNAKE"),
        _MAPPER,
    ] = Field(default_factory=dict[type[BaseException], str])
    default_unhandled_error_code: Annotated[UpperSnake, Says("a code in UPPER_SNAKE"), _MAPPER] = "UNHANDLED_EXCEPTION"
    resend_on_transient_err: Annotated[bool, Strict(), _VALUE] = False

    def contradictions(self) -> Iterator[Fault]:
        yield from self._queues_that_do_not_fit_the_mode()
        yield from self._leases_too_short_or_too_long()
        if self.cluster_wide_cap is not None and self.prefetch_buffer > 0:
            text = "must not be combined with prefetch_buffer: tasks waiting in a buffer would use up the cap"
            yield Fault.of("cluster_wide_cap", "prefetch_buffer", text=text, code=_CAP)
        if self.prefetch_buffer > 0 and self.claim_lease_ms is None:
            text = "must be 0 without claim_lease_ms: tasks in a buffer need a lease that can lapse"
            yield Fault.of("prefetch_buffer", "claim_lease_ms", text=text, code=_PREFETCH)

    def _queues_that_do_not_fit_the_mode(self) -> Iterator[Fault]:
        counts = Counter(queue.name for queue in self.custom_queues or ())
        if self.queue_mode is QueueMode.DEFAULT and counts:
            text = "must be custom where queues are configured"
            yield Fault.of("queue_mode", "custom_queues", text=text, code=_MODE)
        if self.queue_mode is QueueMode.CUSTOM and not counts:
            text = "must name at least one queue in queue_mode custom"
            yield Fault.of("custom_queues", "queue_mode", text=text, code=_MODE)
        for name in (name for name, count in counts.items() if count > 1):
            text = f"must have a name each, but {name!r} is used {counts[name]} times"
            yield Fault.of("custom_queues", text=text, code=_MODE)

    def _leases_too_short_or_too_long(self) -> Iterator[Fault]:
        if self.claim_lease_ms is None:
            return
        beat = "recovery.claimer_heartbeat_interval_ms"
        shortest_ms = 2 * self.recovery.claimer_heartbeat_interval_ms
        if self.claim_lease_ms < shortest_ms:
            text = f"must be at least twice {beat}, that is {shortest_ms} or more, got {self.claim_lease_ms}"
            yield Fault.of("claim_lease_ms", beat, text=text, code=_PREFETCH)
        if self.max_claim_renew_age_ms < self.claim_lease_ms:
            text = f"must not be less than claim_lease_ms ({self.claim_lease_ms}), got {self.max_claim_renew_age_ms}"
            yield Fault.of("max_claim_renew_age_ms", "claim_lease_ms", text=text, code=_PREFETCH)
