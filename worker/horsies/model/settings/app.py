"""Settings of an application: queues, payload limits, the app itself, its project, logging and the TUI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings, at_least, between, format_given
from horsies.model.settings.broker import PostgresConfig
from horsies.model.settings.recovery import RecoveryConfig, RetentionConfig
from horsies.model.settings.schedule import ScheduleConfig
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.model.task_result import is_upper_snake


class QueueMode(StrEnum):
    """One default queue, or several named queues that tasks choose from."""

    DEFAULT = "default"
    CUSTOM = "custom"


class CustomQueueConfig(Settings):
    """A named queue; priority 1 is served first, `max_concurrency` limits its tasks in flight in all workers."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CONFIG_INVALID_QUEUE_MODE

    name: Annotated[
        str,
        Field(strict=True, pattern=r"\A[A-Za-z0-9_.-]{1,100}\z"),
        RuleText("a name of 1 to 100 letters, digits, dots, dashes or underscores"),
    ]
    priority: Annotated[int, between(1, 100)] = 1
    max_concurrency: Annotated[int | None, at_least(0)] = None


class PayloadPolicy(Settings):
    """Sizes of encoded arguments, in bytes, from which a send logs a warning or is rejected; None disables a limit."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    warn_bytes: Annotated[int | None, at_least(1)] = 1_048_576
    reject_bytes: Annotated[int | None, at_least(1)] = None


_MODE = ErrorCode.CONFIG_INVALID_QUEUE_MODE
_CAP = ErrorCode.CONFIG_INVALID_CLUSTER_CAP
_PREFETCH = ErrorCode.CONFIG_INVALID_PREFETCH
_MAPPER = ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
_VALUE = ErrorCode.CLI_INVALID_ARGS


def _upper_snake(code: str) -> str:
    if not is_upper_snake(code):
        raise ValueError(code)  # users see the field's RuleText instead
    return code


UpperSnake = Annotated[str, Strict(), AfterValidator(_upper_snake)]


class AppConfig(Settings):
    """The settings of one application; does not read configuration files."""

    misplaced_keys: ClassVar[Mapping[str, str]] = {
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
        RuleText("a mapping of exception classes to codes in UPPER_SNAKE"),
        _MAPPER,
    ] = Field(default_factory=dict[type[BaseException], str])
    default_unhandled_error_code: Annotated[UpperSnake, RuleText("a code in UPPER_SNAKE"), _MAPPER] = (
        "UNHANDLED_EXCEPTION"
    )
    resend_on_transient_err: Annotated[bool, Strict(), _VALUE] = False

    def contradictions(self) -> Iterator[Fault]:
        yield from self._check_queue_mode()
        yield from self._check_claim_lease()
        if self.cluster_wide_cap is not None and self.prefetch_buffer > 0:
            text = "must not be combined with prefetch_buffer: prefetched tasks would use up the cap"
            yield Fault.between("cluster_wide_cap", "prefetch_buffer", text=text, code=_CAP)
        if self.prefetch_buffer > 0 and self.claim_lease_ms is None:
            text = "must be 0 without claim_lease_ms: prefetched tasks need a lease"
            yield Fault.between("prefetch_buffer", "claim_lease_ms", text=text, code=_PREFETCH)

    def _check_queue_mode(self) -> Iterator[Fault]:
        counts = Counter(queue.name for queue in self.custom_queues or ())
        if self.queue_mode is QueueMode.DEFAULT and counts:
            text = "must be custom if custom_queues are configured"
            yield Fault.between("queue_mode", "custom_queues", text=text, code=_MODE)
        if self.queue_mode is QueueMode.CUSTOM and not counts:
            text = "must contain at least one queue in queue_mode custom"
            yield Fault.between("custom_queues", "queue_mode", text=text, code=_MODE)
        for name in (name for name, count in counts.items() if count > 1):
            text = f"must have unique names, but {name!r} is used {counts[name]} times"
            yield Fault.between("custom_queues", text=text, code=_MODE)

    def _check_claim_lease(self) -> Iterator[Fault]:
        if self.claim_lease_ms is None:
            return
        # The claimer's heartbeat renews leases: with a shorter lease, one late heartbeat would give the claim away.
        interval = "recovery.claimer_heartbeat_interval_ms"
        shortest_ms = 2 * self.recovery.claimer_heartbeat_interval_ms
        if self.claim_lease_ms < shortest_ms:
            text = f"must be at least twice {interval}, that is {shortest_ms} or more, got {self.claim_lease_ms}"
            yield Fault.between("claim_lease_ms", interval, text=text, code=_PREFETCH)
        # Otherwise renewals would stop before even the first lease ends.
        if self.max_claim_renew_age_ms < self.claim_lease_ms:
            text = f"must not be less than claim_lease_ms ({self.claim_lease_ms}), got {self.max_claim_renew_age_ms}"
            yield Fault.between("max_claim_renew_age_ms", "claim_lease_ms", text=text, code=_PREFETCH)


# Locator of the app and its task modules

_NAME = r"[^\W\d]\w*"
_MODULE = re.compile(rf"{_NAME}(?:\.{_NAME})*(?::{_NAME})?")
_FILE = re.compile(rf"(?P<path>[^:\x00-\x1f]*[^:/\x00-\x1f]\.py)(?::{_NAME})?")
_FORMS = "package.module:app, package.module, path/file.py:app or path/file.py"


def _validate_locator(locator: str) -> str:
    """Check the form only: finding out whether the target exists would run user code."""
    file = _FILE.fullmatch(locator)
    if file is None and _MODULE.fullmatch(locator) is None:
        hint = "for example my_package.tasks:app, if my_package/tasks.py contains app = Horsies()"
        if locator.isidentifier():
            hint = f"use {locator}:app for the app in a module, {locator}.py for a file"
        raise _locator_error(f"must be {_FORMS}{format_given(locator)}", hint=hint)
    # my.tasks.py may be a file, or the module my.tasks with a stray suffix.
    if file and "/" not in file["path"] and file["path"].count(".") > 1:
        hint = f"use {file['path'].removesuffix('.py')} for the module, ./{file['path']} for the file"
        raise _locator_error(f"{file['path']!r} is ambiguous: it may be a module or a file", hint=hint)
    return locator


def _locator_error(message: str, *, hint: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.WORKER_INVALID_LOCATOR, hint=hint)


class ProjectConfig(Settings):
    """The locator of the app (`package.module:app`) and the modules that define its tasks."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.WORKER_INVALID_LOCATOR

    locator: Annotated[Annotated[str, AfterValidator(_validate_locator)] | None, RuleText(_FORMS)] = None
    modules: Annotated[list[str], RuleText("a list of module names or .py files")] = Field(default_factory=list[str])


# Logging


def _upper(level: Any) -> Any:
    return level.upper() if isinstance(level, str) else level


class LogConfig(Settings):
    """Log level, format (text or JSON), and whether SQL statements are logged."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)] = "INFO"
    format: Literal["text", "json"] = "text"
    statements: Annotated[bool, Strict()] = False


# TUI


def _validate_regexes(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as cause:
            raise ValueError(pattern) from cause
    return patterns


class TuiConfig(Settings):
    """Theme, refresh rate, key bindings and saved filters of the TUI, and the argument names whose values it masks."""

    fault_code: ClassVar[ErrorCode | None] = ErrorCode.CLI_INVALID_ARGS

    read_only: Annotated[bool, Strict()] = False
    theme: Annotated[str, Field(min_length=1), RuleText("the name of a theme")] = "horsies-dark"
    refresh_ms: Annotated[int, between(100, 60_000)] = 250
    max_rows: Annotated[int, between(50, 5_000)] = 500
    require_reason: Annotated[bool, Strict()] = False
    env: str = ""
    ascii: Annotated[bool, Strict()] = False
    show_args: Literal["masked", "never", "all"] = "masked"
    mask_keys: Annotated[list[str], AfterValidator(_validate_regexes), RuleText("a list of regular expressions")] = (
        Field(default_factory=lambda: ["password", "token", "secret", "key", "authorization"])
    )
    keys: Annotated[Mapping[str, str], RuleText("a table of action = key")] = Field(default_factory=dict[str, str])
    filters: Annotated[Mapping[str, str], RuleText("a table of name = filter")] = Field(default_factory=dict[str, str])
