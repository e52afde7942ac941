"""The table of all keys of horsies.toml: where each stands in the file and in the models, its default and comment."""

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
from horsies.model.settings.base import describe_unknown_key, moved_key_fault, union_members

# One line for each key of horsies.toml, in the order in which the file shows them.

COMMENTS: dict[str, dict[str, str]] = {
    "app": {
        "locator": "where the app is found: package.module:app, or path/file.py:app",
        "modules": "modules or .py files that define tasks",
        "queue_mode": '"default" is one queue; [queues.NAME] below implies "custom"',
        "cluster_wide_cap": "most tasks in flight in the whole fleet",
        "prefetch_buffer": "tasks a worker claims beyond its places; above 0 needs claim_lease_ms",
        "claim_lease_ms": "a claim lapses when it is not renewed for this long; unset, no claim lapses",
        "max_claim_renew_age_ms": "claims older than this are not renewed",
        "default_unhandled_error_code": "error code of a task that raised an exception nobody mapped",
        "resend_on_transient_err": "try a failed send up to three more times",
        "payload_warn_bytes": 'arguments larger than this are logged once per task; "none" never warns',
        "payload_reject_bytes": "arguments larger than this are refused",
    },
    "broker": {
        "database_url": "the PostgreSQL server; unset, DATABASE_URL and then the embedded server",
        "session_database_url": "direct URL for LISTEN, migrations and locks when database_url is a pooler",
        "pgbouncer_transaction_mode": "database_url is a PgBouncer in transaction mode",
        "schema": "schema that holds the tables",
        "auto_migrate": 'a worker brings an old schema up to date; false: "horsies db migrate" does',
        "pool_size": "connections a producer keeps",
        "max_overflow": "connections a producer may open beyond them",
        "pool_timeout": "seconds to wait for a free connection",
        "pool_recycle": "seconds after which an idle connection is replaced",
        "pool_pre_ping": "check a connection that was idle for 30 s before using it",
        "echo": "log statements at DEBUG",
        "worker_pool_size": "connections a worker's parent keeps",
        "worker_max_overflow": "connections it may open beyond them",
        "worker_child_pool_min_size": "connections each child keeps for sends from tasks",
        "worker_child_pool_max_size": "most connections of a child",
        "tcp_keepalives": "let the system notice dead connections",
        "tcp_keepalives_idle": "seconds of silence before the first probe",
        "tcp_keepalives_interval": "seconds between probes",
        "tcp_keepalives_count": "unanswered probes that mean a dead connection",
        "tcp_user_timeout_ms": "longest wait for an acknowledgement; 0 leaves it to the system",
    },
    "worker": {
        "processes": "child processes; unset, one for each usable CPU",
        "queues": "queues this worker serves; unset, all of them",
        "max_claim_batch": "most claims per queue and pass; 0 fills the free places",
        "max_claim_per_worker": "most tasks held in wait; 0 means places and prefetch_buffer",
        "max_tasks_per_child": "replace a child after this many tasks; 0 never",
        "max_memory_per_child_mb": "replace a child that has grown beyond this",
        "max_chunk": "most short tasks handed over at a time",
        "async_concurrency": "async tasks at a time in one child",
        "grace_s": 'seconds for running tasks at shutdown; "none" waits for ever',
        "kill_wait_s": "seconds for killed processes to be gone",
        "snapshot_interval_ms": "how often a worker writes its state row",
        "with_scheduler": "for a scheduler inside this worker; there is none yet, and this has no effect",
    },
    "queues.NAME": {
        "priority": "1 is served first, 100 last",
        "max_concurrency": "most tasks in flight in the whole fleet; 0 stops claiming, unset is no cap",
    },
    "recovery": {
        "auto_requeue_stale_claimed": "put claimed tasks of silent workers back",
        "claimed_stale_threshold_ms": "silence after which a claim is lost; at least two claimer beats",
        "auto_fail_stale_running": "settle running tasks of silent workers",
        "running_stale_threshold_ms": "silence after which a run is lost; at least two runner beats",
        "check_interval_ms": "how often the reaper looks",
        "runner_heartbeat_interval_ms": "beat of a running task",
        "claimer_heartbeat_interval_ms": "beat of a claimed task",
        "heartbeat_retention_hours": 'how long beats are kept; "none" keeps them',
        "worker_state_retention_hours": 'how long worker states are kept; "none" keeps them',
        "terminal_record_retention_hours": 'how long finished tasks and workflows are kept; "none" keeps them',
        "recovery_delay_ms": "earliest start of a task after its recovery",
        "resilient_multiplier": "thresholds of tasks with a resilient flag are this many times longer",
        "resilient_flags": "flags that make a task resilient; empty switches it off",
        "max_crashes": "crashes after which a task fails with POISON_TASK",
        "outage_grace": "silence during an outage of the database condemns nobody",
        "worker_heartbeat_interval_ms": "beat of the worker's own row; unset, the shorter of the two above",
        "worker_stale_threshold_ms": "silence after which a worker counts as stale; at least two of its beats",
    },
    "resilience": {
        "db_retry_initial_ms": "first pause before the database is tried again",
        "db_retry_max_ms": "longest pause",
        "db_retry_max_attempts": "tries before a worker gives up; 0 never",
        "notify_poll_interval_ms": "how often work is looked for without a notification",
    },
    "retention": {
        "interval_s": "how often worker states and finished records are cleaned",
        "batch_size": "rows deleted by one statement",
        "pass_budget_s": "longest pass; the rest waits for the next one",
        "event_retention_hours": 'how long events are kept; "none" keeps them',
        "audit_retention_hours": 'how long audit rows are kept; "none" keeps them',
        "paused_workflow_expire_hours": "workflows paused longer than this expire",
    },
    "schedule": {
        "enabled": "false leaves all schedules at rest",
        "check_interval_seconds": "how often schedules are looked at",
    },
    "schedule.entries": {
        "name": "unique; the schedule's progress is remembered under it",
        "task_name": "the task to send",
        "pattern": "when: interval, hourly, daily, weekly, monthly or cron",
        "args": "positional arguments",
        "kwargs": "named arguments",
        "queue_name": "another queue than the task's own",
        "enabled": "false leaves this schedule at rest",
        "timezone": "IANA name",
        "catch_up_missed": "send for every missed slot, not for the latest only",
        "max_catch_up_runs": "most missed slots sent in one check",
    },
    "tui": {
        "read_only": "offer no actions",
        "theme": "colours; t in the TUI shows the others",
        "refresh_ms": "shortest time between two updates of the screen",
        "max_rows": "most rows of a table",
        "require_reason": "ask for a reason before each action",
        "env": 'shown in the header, e.g. "production"',
        "ascii": "draw with plain characters",
        "show_args": 'arguments of tasks: "masked", "never" or "all"',
        "mask_keys": "names of arguments whose values are hidden, as regular expressions",
        "keys": "other keys for actions; an empty text switches one off",
        "filters": "named filters for the palette",
    },
    "log": {
        "level": "DEBUG, INFO, WARNING, ERROR or CRITICAL, of worker and metrics; other commands only warn",
        "format": '"text" for people, "json" for machines',
        "statements": "log every SQL statement with its duration",
    },
}

# Shown, commented out, where there is no default to show: unset, taken from the machine, or better left open.
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
    """How the text of an environment variable is read."""

    TEXT = "text"
    BOOLEAN = "boolean"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey:
    """One key; `target` is its place in the models, starting at one of `ROOTS`."""

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
        """What to show, commented out, instead of a default; None where the default itself is shown."""
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
        if origin is bool:
            return EnvFormat.BOOLEAN
        is_json = isinstance(origin, type) and issubclass(origin, int | float | list | tuple | Mapping)
        return EnvFormat.JSON if is_json else EnvFormat.TEXT


def _target(section: str, name: str) -> KeyPath:
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


def _field(section: str, target: KeyPath) -> FieldInfo:
    if section in _LIST_ITEM_MODELS:
        return _LIST_ITEM_MODELS[section].model_fields[target[-1]]
    model = ROOTS[target[0]]
    for part in target[1:-1]:
        kinds = [kind for kind in union_members(model.model_fields[part].annotation) if kind is not type(None)]
        model = cast("type[Settings]", kinds[0])
    return model.model_fields[target[-1]]


_LIST_ITEM_MODELS: Mapping[str, type[Settings]] = {QUEUE_SECTION: CustomQueueConfig, ENTRY_SECTION: TaskSchedule}


def _key(section: str, name: str, comment: str) -> SettingKey:
    target = _target(section, name)
    return SettingKey(section=section, name=name, model_path=target, comment=comment, field=_field(section, target))


KEYS: Mapping[str, SettingKey] = {
    f"{section}.{name}": _key(section, name, comment)
    for section, comments in COMMENTS.items()
    for name, comment in comments.items()
}
SCHEDULE_ENTRIES_KEY = SettingKey(
    section="schedule",
    name="entries",
    model_path=("app", "schedule", "schedules"),
    comment="one table for each schedule",
    field=_field("schedule", ("app", "schedule", "schedules")),
)


# From a name as somebody wrote it to the key it means, or to what is wrong with it.

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


def look_up(path: KeyPath) -> SettingKey | Fault:
    """The key at `path` (`("queues", "mail", "priority")`), or a fault that names the nearest or the new place."""
    section, name = path[0], path[-1]
    pattern = QUEUE_SECTION if section == "queues" else section
    key = SCHEDULE_ENTRIES_KEY if path == ("schedule", "entries") else KEYS.get(f"{pattern}.{name}")
    if key is not None and len(path) == pattern.count(".") + 2:
        return key
    return _find_moved_key(path) or _unknown_key_fault(path, pattern)


def _find_moved_key(path: KeyPath) -> Fault | None:
    written = ".".join(path)
    if path[0] == "retention" and path[-1] in RetentionConfig.elsewhere:
        return moved_key_fault(path, RetentionConfig.elsewhere[path[-1]], code=ErrorCode.CONFIG_INVALID_RETENTION)
    if place := _MOVED_KEYS.get(written):
        return moved_key_fault(path, place)
    places = [key.path for key in KEYS.values() if key.name == path[-1] and key.section in _SECTIONS_WITH_UNIQUE_KEYS]
    return moved_key_fault(path, places[0]) if places else None


# Their keys have names that mean the same wherever somebody puts them.
_SECTIONS_WITH_UNIQUE_KEYS = frozenset(COMMENTS) - {QUEUE_SECTION, ENTRY_SECTION, "schedule", "tui"}


def _unknown_key_fault(path: KeyPath, pattern: str) -> Fault:
    if path == ("queues",) or (path[0] == "queues" and len(path) == 2):
        text = "must be a table with the name of a queue, [queues.NAME]"
        return Fault(path=path, text=text, code=ErrorCode.CONFIG_INVALID_QUEUE_MODE)
    if len(path) == 1 and path[0] in SECTIONS:
        return Fault(path=path, text=f"must be a table, [{path[0]}]", code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 1 or path[0] not in SECTIONS:
        text, hint = describe_unknown_key(path[0], SECTIONS)
        return Fault(path=path[:1], text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 2 and path[1] in SECTIONS:  # in TOML a dotted key counts from the table above it
        hint = f"a section: move it above [{path[0]}], or into [{path[1]}]"
        return Fault(path=path, text="unknown key", hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    text, hint = describe_unknown_key(path[-1], COMMENTS[pattern])
    return Fault(path=path, text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
