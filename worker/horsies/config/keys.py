"""All keys of horsies.toml, listed from the fields of the settings models, and hints for unknown ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from horsies.errors import ErrorCode
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    Fault,
    LogConfig,
    PayloadPolicy,
    PostgresConfig,
    ProjectConfig,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    Settings,
    TaskSchedule,
    TuiConfig,
    WorkerResilienceConfig,
    WorkerSettings,
)
from horsies.model.settings.base import describe_unknown_key, misplaced_key_fault, union_members

KeyPath: TypeAlias = tuple[str, ...]


class AllSettings(Settings):
    """The settings of all sections; the path of a setting starts at one of these fields."""

    app: AppConfig = AppConfig.model_construct()
    project: ProjectConfig = ProjectConfig.model_construct()
    worker: WorkerSettings = Field(default_factory=WorkerSettings.model_construct)
    tui: TuiConfig = TuiConfig.model_construct()
    log: LogConfig = LogConfig.model_construct()


QUEUE_SECTION = "queues.NAME"
ENTRY_SECTION = "schedule.entries"

# The sections in the order of the file; each model with its path, starting at a field of `AllSettings`.
_MODELS: tuple[tuple[str, type[Settings], KeyPath], ...] = (
    ("app", ProjectConfig, ("project",)),
    ("app", AppConfig, ("app",)),
    ("app", PayloadPolicy, ("app", "payload")),
    ("broker", PostgresConfig, ("app", "broker")),
    ("worker", WorkerSettings, ("worker",)),
    (QUEUE_SECTION, CustomQueueConfig, ("app", "custom_queues", "NAME")),
    ("recovery", RecoveryConfig, ("app", "recovery")),
    ("resilience", WorkerResilienceConfig, ("app", "resilience")),
    ("retention", RetentionConfig, ("app", "retention")),
    ("schedule", ScheduleConfig, ("app", "schedule")),
    (ENTRY_SECTION, TaskSchedule, ("app", "schedule", "schedules")),
    ("tui", TuiConfig, ("tui",)),
    ("log", LogConfig, ("log",)),
)
# Fields whose key has another name.
_KEY_NAMES = {"warn_bytes": "payload_warn_bytes", "reject_bytes": "payload_reject_bytes", "schedules": "entries"}

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey:
    """One key of the file, and the field of the settings models that it sets."""

    section: str
    name: str
    model_path: KeyPath
    field: FieldInfo

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def comment(self) -> str:
        return self.field.description or ""

    @property
    def example(self) -> Any:
        """The value to show commented out; None if the default is shown."""
        return self.field.examples[0] if self.field.examples else None

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    def parse_text(self, text: str) -> Any:
        """Parse an environment variable or option; invalid text is returned as it is, for the model to reject."""
        member = union_members(self.field.annotation)[0]
        kind = get_origin(member) or member
        if kind is bool:  # before int, of which bool is a subclass
            return _BOOLEANS.get(text.strip().lower(), text)
        if isinstance(kind, type) and issubclass(kind, int | float | list | tuple | Mapping):
            with suppress(ValueError):
                return json.loads(text)
        return text

    def resolve_none(self, value: Any) -> Any:
        """Return None for "none" or -1 if the key is optional, any other value unchanged."""
        # TOML has no null, so a value has to stand for it.
        is_none = value.strip().lower() == "none" if isinstance(value, str) else type(value) is int and value == -1
        return None if is_none and type(None) in union_members(self.field.annotation) else value


def _list_keys() -> Iterator[SettingKey]:
    """Yield a key for each field with a description; fields without one can be set in code only."""
    for section, model, path in _MODELS:
        for name, field in model.model_fields.items():
            if field.description is not None:
                key_name = _KEY_NAMES.get(name, name)
                yield SettingKey(section=section, name=key_name, model_path=(*path, name), field=field)


KEYS: Mapping[str, SettingKey] = {key.path: key for key in _list_keys()}
SECTION_KEYS: Mapping[str, Mapping[str, SettingKey]] = {
    section: {key.name: key for key in KEYS.values() if key.section == section} for section, _, _ in _MODELS
}


# Lookup of keys by name, with hints for moved and misspelled ones

SECTIONS = tuple(dict.fromkeys(section.partition(".")[0] for section in SECTION_KEYS))

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
# Sections with names such as `name` and `enabled`, which say nothing about where a key belongs.
_SECTIONS_WITH_COMMON_NAMES = frozenset({QUEUE_SECTION, ENTRY_SECTION, "schedule", "tui"})


def look_up(path: KeyPath) -> SettingKey | Fault:
    """Return the key at `path`, e.g. `("queues", "mail", "priority")`, or a fault with the closest or new name."""
    section, name = path[0], path[-1]
    pattern = QUEUE_SECTION if section == "queues" else section
    key = KEYS.get(f"{pattern}.{name}")
    # Compare the depth too: `queues.priority` would otherwise match the pattern `queues.NAME.priority`.
    if key is not None and len(path) == pattern.count(".") + 2:
        return key
    return _find_moved_key(path) or _unknown_key_fault(path, pattern)


def _find_moved_key(path: KeyPath) -> Fault | None:
    if path[0] == "retention" and path[-1] in RetentionConfig.misplaced_keys:
        place = RetentionConfig.misplaced_keys[path[-1]]
        return misplaced_key_fault(path, place, code=ErrorCode.CONFIG_INVALID_RETENTION)
    if new_name := _MOVED_KEYS.get(".".join(path)):
        return misplaced_key_fault(path, new_name)
    for key in KEYS.values():
        if key.name == path[-1] and key.section not in _SECTIONS_WITH_COMMON_NAMES:
            return misplaced_key_fault(path, key.path)
    return None


def _unknown_key_fault(path: KeyPath, pattern: str) -> Fault:
    if path[0] == "queues" and len(path) <= 2:
        text = "must be a table named after a queue: [queues.NAME]"
        return Fault(path=path, text=text, code=ErrorCode.CONFIG_INVALID_QUEUE_MODE)
    code = ErrorCode.CONFIG_UNKNOWN_KEY
    if path[0] not in SECTIONS:
        text, hint = describe_unknown_key(path[0], SECTIONS)
        return Fault(path=path[:1], text=text, hint=hint, code=code)
    if len(path) == 1:
        return Fault(path=path, text=f"must be a table: [{path[0]}]", code=code)
    if len(path) == 2 and path[1] in SECTIONS:  # a dotted key below a table header is relative to that table
        hint = f"{path[1]} is a section: move the line above [{path[0]}], or into [{path[1]}]"
        return Fault(path=path, text="unknown key", hint=hint, code=code)
    text, hint = describe_unknown_key(path[-1], SECTION_KEYS[pattern])
    return Fault(path=path, text=text, hint=hint, code=code)
