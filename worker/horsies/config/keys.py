"""All keys of horsies.toml: section, comment, default, and the field of the settings models each one sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, cast, get_origin

from pydantic.fields import FieldInfo

from horsies.errors import ErrorCode
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    Fault,
    LogConfig,
    ProjectConfig,
    RetentionConfig,
    Settings,
    TaskSchedule,
    TuiConfig,
    WorkerSettings,
)
from horsies.model.settings.base import describe_unknown_key, misplaced_key_fault, union_members

# The comment of each key, in the order of the file.
COMMENTS: dict[str, dict[str, str]] = {
    "app": {
        "locator": 'the app: "package.module:app" or "path/file.py:app"; default: none',
        "modules": "modules or .py files that define tasks",
        "queue_mode": '"default" (one queue) or "custom"; default: "custom" if [queues.NAME] is given',
        "cluster_wide_cap": "most tasks in flight in the whole fleet; default: no limit",
        "prefetch_buffer": "tasks claimed ahead of free slots; a value above 0 requires claim_lease_ms",
        "claim_lease_ms": "milliseconds until a claim expires if it is not renewed; default: claims do not expire",
        "max_claim_renew_age_ms": "milliseconds after which a claim is no longer renewed",
        "default_unhandled_error_code": "error code for exceptions that exception_mapper does not list",
        "resend_on_transient_err": "retry a failed send up to three times",
        "payload_warn_bytes": 'warn once per task about arguments larger than this, in bytes; "none" to disable',
        "payload_reject_bytes": "reject arguments larger than this, in bytes; default: no limit",
    },
    "broker": {
        "database_url": "PostgreSQL URL; default: DATABASE_URL, else the embedded server",
        "session_database_url": "direct URL for LISTEN, migrations and locks if database_url is a pooler; optional",
        "pgbouncer_transaction_mode": "set to true if database_url is a PgBouncer in transaction mode",
        "schema": "database schema of the tables",
        "auto_migrate": 'migrate the schema when a worker starts; if false, run "horsies db migrate"',
        "pool_size": "connections a producer keeps open",
        "max_overflow": "connections a producer may open in addition to pool_size",
        "pool_timeout": "seconds to wait for a free connection",
        "pool_recycle": "seconds after which an idle connection is replaced",
        "pool_pre_ping": "check connections that were idle for 30 s before using them",
        "echo": "log SQL statements at level DEBUG",
        "worker_pool_size": "connections a worker's parent process keeps open",
        "worker_max_overflow": "connections it may open in addition to worker_pool_size",
        "worker_child_pool_min_size": "connections each child process keeps open, for tasks that send tasks",
        "worker_child_pool_max_size": "most connections of each child process",
        "tcp_keepalives": "detect dead connections with TCP keepalives",
        "tcp_keepalives_idle": "idle seconds before the first keepalive",
        "tcp_keepalives_interval": "seconds between keepalives",
        "tcp_keepalives_count": "unanswered keepalives after which a connection is dead",
        "tcp_user_timeout_ms": "milliseconds to wait for an acknowledgement; 0 uses the system default",
    },
    "worker": {
        "processes": "number of child processes; default: number of CPUs",
        "queues": "queues to serve; default: all",
        "max_claim_batch": "most tasks claimed per queue in one pass; 0 fills the free slots",
        "max_claim_per_worker": "most claimed tasks waiting to start; 0 means slots + prefetch_buffer",
        "max_tasks_per_child": "replace a child process after this many tasks; 0 means never",
        "max_memory_per_child_mb": "replace a child process that uses more memory than this, in MB; default: no limit",
        "max_chunk": "most short tasks sent to a child at once, 1 to 64",
        "async_concurrency": "async tasks that run concurrently in one child process",
        "grace_s": 'seconds for running tasks to finish on shutdown; "none" means no limit',
        "kill_wait_s": "seconds to wait for killed processes to exit",
        "snapshot_interval_ms": "milliseconds between snapshots of the worker's state",
        "with_scheduler": "reserved for a scheduler inside the worker; no effect yet",
    },
    "queues.NAME": {
        "priority": "1 (served first) to 100 (served last)",
        "max_concurrency": "most tasks of this queue in flight in the fleet; 0 stops claiming; default: no limit",
    },
    "recovery": {
        "auto_requeue_stale_claimed": "requeue claimed tasks whose worker stopped sending heartbeats",
        "claimed_stale_threshold_ms": "milliseconds without a heartbeat after which a claimed task is stale",
        "auto_fail_stale_running": "retry or fail running tasks whose worker stopped sending heartbeats",
        "running_stale_threshold_ms": "milliseconds without a heartbeat after which a running task is stale",
        "check_interval_ms": "milliseconds between passes of the reaper",
        "runner_heartbeat_interval_ms": "milliseconds between heartbeats of running tasks",
        "claimer_heartbeat_interval_ms": "milliseconds between heartbeats of claimed tasks",
        "heartbeat_retention_hours": 'hours to keep heartbeats; "none" keeps them forever',
        "worker_state_retention_hours": 'hours to keep worker snapshots; "none" keeps them forever',
        "terminal_record_retention_hours": 'hours to keep finished tasks and workflows; "none" keeps them forever',
        "recovery_delay_ms": "milliseconds before a recovered task may start again",
        "resilient_multiplier": "factor for the stale thresholds of tasks with a resilient flag",
        "resilient_flags": "task flags that select the longer thresholds; an empty list disables them",
        "max_crashes": "crashes after which a task fails with POISON_TASK",
        "outage_grace": "pause recovery after the database was unreachable, until heartbeats are back",
        "worker_heartbeat_interval_ms": "milliseconds between worker heartbeats; default: the shorter of the two above",
        "worker_stale_threshold_ms": "milliseconds without a heartbeat after which a worker is stale",
    },
    "resilience": {
        "db_retry_initial_ms": "first delay before reconnecting to the database, in milliseconds",
        "db_retry_max_ms": "longest delay between reconnection attempts, in milliseconds",
        "db_retry_max_attempts": "reconnection attempts before a worker exits; 0 means no limit",
        "notify_poll_interval_ms": "milliseconds between polls for work that no notification announced",
    },
    "retention": {
        "interval_s": "seconds between clean-up passes",
        "batch_size": "rows deleted per statement",
        "pass_budget_s": "longest clean-up pass, in seconds; the next pass continues",
        "event_retention_hours": 'hours to keep events; "none" keeps them forever',
        "audit_retention_hours": 'hours to keep audit entries; "none" keeps them forever',
        "paused_workflow_expire_hours": "hours after which a paused workflow expires; default: never",
    },
    "schedule": {
        "enabled": "set to false to stop all schedules",
        "check_interval_seconds": "seconds between checks for due schedules",
    },
    "schedule.entries": {
        "name": "unique name; progress is stored under it",
        "task_name": "task to send",
        "pattern": "when to run; type: interval, hourly, daily, weekly, monthly or cron",
        "args": "positional arguments",
        "kwargs": "keyword arguments",
        "queue_name": "queue to send to; default: the task's queue",
        "enabled": "set to false to stop this schedule",
        "timezone": "IANA time zone of the pattern",
        "catch_up_missed": "send every missed run instead of only the latest",
        "max_catch_up_runs": "most missed runs sent in one check",
    },
    "tui": {
        "read_only": "disable all actions",
        "theme": "colour theme; press t in the TUI to choose",
        "refresh_ms": "shortest time between screen updates, in milliseconds",
        "max_rows": "most rows in a table",
        "require_reason": "ask for a reason before every action",
        "env": 'name of the environment, shown in the header, for example "production"',
        "ascii": "draw with ASCII characters only",
        "show_args": 'how to show task arguments: "masked", "never" or "all"',
        "mask_keys": "regular expressions for argument names whose values are masked",
        "keys": "key bindings by action; an empty string disables the key; default: none changed",
        "filters": "named filters for the command palette; default: none",
    },
    "log": {
        "level": "DEBUG, INFO, WARNING, ERROR or CRITICAL; for worker and metrics, other commands log warnings",
        "format": '"text" or "json"',
        "statements": "log every SQL statement with its duration",
    },
}

# Example values, shown commented out for keys without a fixed default.
EXAMPLES: dict[str, Any] = {
    "app.locator": "my_package.tasks:app",
    "app.queue_mode": "default",
    "app.cluster_wide_cap": 100,
    "app.claim_lease_ms": 60_000,
    "app.payload_reject_bytes": 10_485_760,
    "broker.database_url": "postgresql://user:password@localhost:5432/my_database",
    "broker.session_database_url": "postgresql://user:password@primary.internal:5432/my_database",
    "worker.processes": 4,
    "worker.queues": ["mail", "reports"],
    "worker.max_memory_per_child_mb": 512,
    "queues.NAME.max_concurrency": 10,
    "recovery.worker_heartbeat_interval_ms": 30_000,
    "retention.paused_workflow_expire_hours": 720,
    "schedule.entries.name": "nightly-report",
    "schedule.entries.task_name": "reports.nightly",
    "schedule.entries.pattern": {"type": "daily", "time": "02:30"},
    "schedule.entries.queue_name": "reports",
    "tui.keys": {"view.theme": "ctrl+t"},
    "tui.filters": {"smtp": "queue:mail err:SMTP*"},
}


KeyPath: TypeAlias = tuple[str, ...]

ROOTS: Mapping[str, type[Settings]] = {
    "app": AppConfig,
    "project": ProjectConfig,
    "worker": WorkerSettings,
    "tui": TuiConfig,
    "log": LogConfig,
}
QUEUE_SECTION = "queues.NAME"
ENTRY_SECTION = "schedule.entries"


class EnvFormat(StrEnum):
    """How an environment variable is parsed."""

    TEXT = "text"
    BOOLEAN = "boolean"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey:
    """One key of the file; `model_path` is its field in the models, starting at one of `ROOTS`."""

    section: str
    name: str
    model_path: KeyPath
    comment: str
    field: FieldInfo

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def example(self) -> Any:
        """The value to show commented out; None if the default is shown."""
        return EXAMPLES.get(self.path)

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def is_optional(self) -> bool:
        return type(None) in union_members(self.field.annotation)

    @property
    def env_format(self) -> EnvFormat:
        member = union_members(self.field.annotation)[0]
        origin = get_origin(member) or member
        if origin is bool:  # before int, of which bool is a subclass
            return EnvFormat.BOOLEAN
        is_json = isinstance(origin, type) and issubclass(origin, int | float | list | tuple | Mapping)
        return EnvFormat.JSON if is_json else EnvFormat.TEXT


def _model_path(section: str, name: str) -> KeyPath:
    match section:
        case "app" if name in ProjectConfig.model_fields:
            return ("project", name)
        case "app" if name.startswith("payload_"):
            return ("app", "payload", name.removeprefix("payload_"))
        case "app" | "worker" | "tui" | "log":
            return (section, name)
        case "queues.NAME":
            return ("app", "custom_queues", "NAME", name)
        case "schedule.entries":
            return ("app", "schedule", "schedules", name)
        case _:
            return ("app", section, name)


_LIST_ITEM_MODELS: Mapping[str, type[Settings]] = {QUEUE_SECTION: CustomQueueConfig, ENTRY_SECTION: TaskSchedule}


def _field(section: str, path: KeyPath) -> FieldInfo:
    if section in _LIST_ITEM_MODELS:
        return _LIST_ITEM_MODELS[section].model_fields[path[-1]]
    model = ROOTS[path[0]]
    for part in path[1:-1]:
        members = [member for member in union_members(model.model_fields[part].annotation) if member is not type(None)]
        model = cast("type[Settings]", members[0])
    return model.model_fields[path[-1]]


def _setting_key(section: str, name: str, comment: str) -> SettingKey:
    path = _model_path(section, name)
    return SettingKey(section=section, name=name, model_path=path, comment=comment, field=_field(section, path))


KEYS: Mapping[str, SettingKey] = {
    f"{section}.{name}": _setting_key(section, name, comment)
    for section, comments in COMMENTS.items()
    for name, comment in comments.items()
}
SCHEDULE_ENTRIES_KEY = SettingKey(
    section="schedule",
    name="entries",
    model_path=("app", "schedule", "schedules"),
    comment="one table per schedule",
    field=_field("schedule", ("app", "schedule", "schedules")),
)


# Lookup of keys by name, with hints for moved and misspelled ones

SECTIONS = tuple(dict.fromkeys(section.partition(".")[0] for section in COMMENTS))

_MOVED_KEYS = {
    "app.custom_queues": "[queues.NAME]",
    "app.payload": "app.payload_warn_bytes and app.payload_reject_bytes",
    "app.exception_mapper": "AppConfig(exception_mapper=…) in code",
    "broker.url": "broker.database_url",
    "payload.reject_bytes": "app.payload_reject_bytes",
    "payload.warn_bytes": "app.payload_warn_bytes",
    "schedule.schedules": "[[schedule.entries]]",
    "worker.app_locator": "app.locator",
    "worker.dsn": "broker.database_url",
    "worker.imports": "app.modules",
    "worker.session_dsn": "broker.session_database_url",
}


# Sections whose key names are unique enough to find a key that was put into the wrong section.
_SECTIONS_WITH_UNIQUE_KEYS = frozenset(COMMENTS) - {QUEUE_SECTION, ENTRY_SECTION, "schedule", "tui"}


def look_up(path: KeyPath) -> SettingKey | Fault:
    """Return the key at `path`, e.g. `("queues", "mail", "priority")`, or a fault with the closest or new name."""
    section, name = path[0], path[-1]
    pattern = QUEUE_SECTION if section == "queues" else section
    key = SCHEDULE_ENTRIES_KEY if path == ("schedule", "entries") else KEYS.get(f"{pattern}.{name}")
    # The depth too: `queues.priority` would otherwise match the pattern `queues.NAME.priority`.
    if key is not None and len(path) == pattern.count(".") + 2:
        return key
    return _find_moved_key(path) or _unknown_key_fault(path, pattern)


def _find_moved_key(path: KeyPath) -> Fault | None:
    if path[0] == "retention" and path[-1] in RetentionConfig.misplaced_keys:
        place = RetentionConfig.misplaced_keys[path[-1]]
        return misplaced_key_fault(path, place, code=ErrorCode.CONFIG_INVALID_RETENTION)
    if new_name := _MOVED_KEYS.get(".".join(path)):
        return misplaced_key_fault(path, new_name)
    matches = [key.path for key in KEYS.values() if key.name == path[-1] and key.section in _SECTIONS_WITH_UNIQUE_KEYS]
    return misplaced_key_fault(path, matches[0]) if matches else None


def _unknown_key_fault(path: KeyPath, pattern: str) -> Fault:
    if path == ("queues",) or (path[0] == "queues" and len(path) == 2):
        text = "must be a table named after a queue: [queues.NAME]"
        return Fault(path=path, text=text, code=ErrorCode.CONFIG_INVALID_QUEUE_MODE)
    if len(path) == 1 and path[0] in SECTIONS:
        return Fault(path=path, text=f"must be a table: [{path[0]}]", code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 1 or path[0] not in SECTIONS:
        text, hint = describe_unknown_key(path[0], SECTIONS)
        return Fault(path=path[:1], text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 2 and path[1] in SECTIONS:  # a dotted key below a table header is relative to that table
        hint = f"{path[1]} is a section: move the line above [{path[0]}], or into [{path[1]}]"
        return Fault(path=path, text="unknown key", hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    text, hint = describe_unknown_key(path[-1], COMMENTS[pattern])
    return Fault(path=path, text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
