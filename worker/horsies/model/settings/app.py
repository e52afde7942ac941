"""Settings of an application: queues, payload limits, the app itself, its project, logging and the TUI."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.base import Fault, RuleText, Settings, format_given
from horsies.model.settings.broker import DatabaseUrl, PostgresConfig
from horsies.model.settings.recovery import RecoveryConfig, RetentionConfig
from horsies.model.settings.schedule import ScheduleConfig
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.model.task_result import UPPER_SNAKE


class QueueMode(StrEnum):
    """One default queue, or several named queues that tasks choose from."""

    DEFAULT = "default"
    CUSTOM = "custom"


class CustomQueueConfig(Settings):
    """A named queue; priority 1 is served first, `max_concurrency` limits its tasks in flight in all workers."""

    fault_code = ErrorCode.CONFIG_INVALID_QUEUE_MODE

    name: Annotated[StrictStr, RuleText("a name of 1 to 100 letters, digits, dots, dashes or underscores")] = Field(
        pattern=r"\A[A-Za-z0-9_.-]{1,100}\z"
    )
    priority: StrictInt = Field(default=1, ge=1, le=100, description="1 (served first) to 100 (served last)")
    max_concurrency: StrictInt | None = Field(
        default=None,
        ge=0,
        examples=[10],
        description="most tasks in flight in the fleet; 0 stops claiming; default: no limit",
    )


class PayloadPolicy(Settings):
    """Sizes of encoded arguments, in bytes, from which a send logs a warning or is rejected; None disables a limit."""

    fault_code = ErrorCode.CLI_INVALID_ARGS

    warn_bytes: StrictInt | None = Field(
        default=1_048_576,
        ge=1,
        description='warn once per task about arguments larger than this, in bytes; "none" to disable',
    )
    reject_bytes: StrictInt | None = Field(
        default=None,
        ge=1,
        examples=[10_485_760],
        description="reject arguments larger than this, in bytes; default: no limit",
    )


_MODE = ErrorCode.CONFIG_INVALID_QUEUE_MODE
_CAP = ErrorCode.CONFIG_INVALID_CLUSTER_CAP
_PREFETCH = ErrorCode.CONFIG_INVALID_PREFETCH
_MAPPER = ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
_VALUE = ErrorCode.CLI_INVALID_ARGS


def _upper_snake(code: str) -> str:
    if not UPPER_SNAKE.fullmatch(code):
        raise ValueError(code)  # users see the field's RuleText instead
    return code


UpperSnake = Annotated[StrictStr, AfterValidator(_upper_snake), RuleText("a code in UPPER_SNAKE")]


class AppConfig(Settings):
    """The settings of one application; does not read configuration files."""

    misplaced_keys: ClassVar[Mapping[str, str]] = {
        "payload_warn_bytes": "payload=PayloadPolicy(warn_bytes=…)",
        "payload_reject_bytes": "payload=PayloadPolicy(reject_bytes=…)",
        "database_url": "broker=PostgresConfig(database_url=…)",
        "locator": "app.locator in horsies.toml",
        "modules": "app.modules in horsies.toml, or Horsies.discover_tasks(…)",
    }

    name: Annotated[StrictStr | None, _VALUE] = Field(
        default=None,
        min_length=1,
        max_length=255,
        examples=["shop"],
        description="name of the app, which owns its schedules; default: the module that creates the app",
    )
    queue_mode: Annotated[QueueMode, _MODE] = Field(
        default=QueueMode.DEFAULT,
        examples=["default"],
        description='"default" (one queue) or "custom"; default: "custom" if [queues.NAME] is given',
    )
    custom_queues: Annotated[list[CustomQueueConfig] | None, _MODE] = None
    broker: PostgresConfig = PostgresConfig.model_construct()
    cluster_wide_cap: Annotated[StrictInt | None, _CAP] = Field(
        default=None, ge=1, examples=[100], description="most tasks in flight in the whole fleet; default: no limit"
    )
    prefetch_buffer: Annotated[StrictInt, _PREFETCH] = Field(
        default=0, ge=0, description="tasks claimed ahead of free slots; a value above 0 requires claim_lease_ms"
    )
    claim_lease_ms: Annotated[StrictInt | None, _PREFETCH] = Field(
        default=None,
        ge=1,
        examples=[60_000],
        description="milliseconds until a claim expires if not renewed; default: never",
    )
    max_claim_renew_age_ms: Annotated[StrictInt, _PREFETCH] = Field(
        default=180_000, ge=1, description="milliseconds after which a claim is no longer renewed"
    )
    payload: PayloadPolicy = PayloadPolicy.model_construct()
    recovery: RecoveryConfig = RecoveryConfig.model_construct()
    resilience: WorkerResilienceConfig = WorkerResilienceConfig.model_construct()
    retention: RetentionConfig = RetentionConfig.model_construct()
    schedule: ScheduleConfig | None = None
    exception_mapper: Annotated[
        Mapping[type[BaseException], UpperSnake],
        RuleText("a mapping of exception classes to codes in UPPER_SNAKE"),
        _MAPPER,
    ] = {}
    default_unhandled_error_code: Annotated[UpperSnake, _MAPPER] = Field(
        default="UNHANDLED_EXCEPTION", description="error code for exceptions that exception_mapper does not list"
    )
    resend_on_transient_err: Annotated[StrictBool, _VALUE] = Field(
        default=False, description="retry a failed send up to three times"
    )

    unknown_task_grace_s: Annotated[StrictInt | None, _VALUE] = Field(
        default=3_600,
        ge=0,
        description='seconds until a due task that no worker has registered fails; 0 fails it at once, "none" never',
    )

    @classmethod
    def for_database_url(cls, url: str | DatabaseUrl) -> Self:
        """The default settings with this database; raises HRS-203 if the URL is invalid."""
        return cls(broker=PostgresConfig(database_url=url))

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
_FORM = re.compile(
    rf"(?P<module>(?P<file>[^:\x00-\x1f]*[^:/\x00-\x1f]\.py)|{_NAME}(?:\.{_NAME})*)(?::(?P<attribute>{_NAME}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locator:
    """The location of an app: a dotted module or a file, and optionally the name of its variable there."""

    module: str
    attribute: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a locator; raises HRS-206 if it is malformed. Does not look for the app: that would run user code."""
        form = _FORM.fullmatch(text)
        if form is None:
            message = (
                f"the app must be package.module:app or path/file.py:app, with or without :app{format_given(text)}"
            )
            hint = "for example package.module:app, if package/module.py contains app = Horsies()"
            raise ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
        # my.tasks.py may be a file, or the module my.tasks with a stray suffix.
        file = form["file"]
        if file and "/" not in file and file.count(".") > 1:
            message = f"{file!r} is ambiguous: it may be a module or a file"
            hint = f"use {file.removesuffix('.py')} for the module or ./{file} for the file"
            raise ConfigurationError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
        return cls(module=form["module"], attribute=form["attribute"])


def _check_locator(text: str) -> str:
    Locator.parse(text)
    return text


class ProjectConfig(Settings):
    """The locator of the app (`package.module:app`) and the modules that define its tasks."""

    fault_code = ErrorCode.WORKER_INVALID_LOCATOR

    locator: Annotated[str, AfterValidator(_check_locator)] | None = Field(
        default=None,
        examples=["my_package.tasks:app"],
        description='the app: "package.module:app" or "path/file.py:app"; default: none',
    )
    modules: list[str] = Field(default=[], description="modules or .py files that define tasks")


# Logging


def _upper(level: Any) -> Any:
    return level.upper() if isinstance(level, str) else level


class LogConfig(Settings):
    """Log level, format (text or JSON), and whether SQL statements are logged."""

    fault_code = ErrorCode.CLI_INVALID_ARGS

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)] = Field(
        default="INFO",
        description="DEBUG, INFO, WARNING, ERROR or CRITICAL; for worker and metrics, other commands log warnings",
    )
    format: Literal["text", "json"] = Field(default="text", description='format of log lines: "text" or "json"')
    statements: StrictBool = Field(default=False, description="log every SQL statement with its duration")


# TUI


def _validate_regexes(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as cause:
            raise ValueError(pattern) from cause
    return patterns


Regexes = Annotated[list[str], AfterValidator(_validate_regexes), RuleText("a list of regular expressions")]


class TuiConfig(Settings):
    """Theme, refresh rate, key bindings and saved filters of the TUI, and the argument names whose values it masks."""

    fault_code = ErrorCode.CLI_INVALID_ARGS

    read_only: StrictBool = Field(default=False, description="disable all actions")
    theme: str = Field(default="horsies-dark", min_length=1, description="colour theme; press t in the TUI to choose")
    refresh_ms: StrictInt = Field(
        default=250, ge=100, le=60_000, description="shortest time between screen updates, in milliseconds"
    )
    max_rows: StrictInt = Field(default=500, ge=50, le=5_000, description="most rows in a table")
    require_reason: StrictBool = Field(default=False, description="ask for a reason before every action")
    env: str = Field(default="", description='name of the environment, shown in the header, for example "production"')
    ascii: StrictBool = Field(default=False, description="draw with ASCII characters only")
    show_args: Literal["masked", "never", "all"] = Field(
        default="masked", description='how to show task arguments: "masked", "never" or "all"'
    )
    mask_keys: Regexes = Field(
        default=["password", "token", "secret", "key", "authorization"],
        description="regular expressions for argument names whose values are masked",
    )
    keys: Mapping[str, str] = Field(
        default={},
        examples=[{"view.theme": "ctrl+t"}],
        description="key bindings by action; an empty string disables the key; default: none changed",
    )
    filters: Mapping[str, str] = Field(
        default={},
        examples=[{"smtp": "queue:mail err:SMTP*"}],
        description="named filters for the command palette; default: none",
    )
