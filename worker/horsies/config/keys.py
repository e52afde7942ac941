"""The table of all keys of horsies.toml: where each stands in the file and in the models, its default and comment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_origin

from horsies.config.comments import COMMENTS, EXAMPLES
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    LogConfig,
    ProjectConfig,
    Settings,
    TaskSchedule,
    TuiConfig,
    WorkerSettings,
)
from horsies.model.settings.wording import members

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Target: TypeAlias = tuple[str, ...]

ROOTS: Mapping[str, type[Settings]] = {
    "app": AppConfig,
    "project": ProjectConfig,
    "worker": WorkerSettings,
    "tui": TuiConfig,
    "log": LogConfig,
}
QUEUE_SECTION = "queues.NAME"
ENTRY_SECTION = "schedule.entries"


class Kind(StrEnum):
    """How the text of an environment variable is read."""

    TEXT = "text"
    BOOLEAN = "boolean"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key; `target` is its place in the models, starting at one of `ROOTS`."""

    section: str
    name: str
    target: Target
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
        return type(None) in members(self.field.annotation)

    @property
    def kind(self) -> Kind:
        member = members(self.field.annotation)[0]
        origin = get_origin(member) or member
        if origin is bool:
            return Kind.BOOLEAN
        is_json = isinstance(origin, type) and issubclass(origin, int | float | list | tuple | Mapping)
        return Kind.JSON if is_json else Kind.TEXT


def _target(section: str, name: str) -> Target:
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


def _field(section: str, target: Target) -> FieldInfo:
    if section in _INSIDE_LISTS:
        return _INSIDE_LISTS[section].model_fields[target[-1]]
    model = ROOTS[target[0]]
    for part in target[1:-1]:
        kinds = [kind for kind in members(model.model_fields[part].annotation) if kind is not type(None)]
        model = cast("type[Settings]", kinds[0])
    return model.model_fields[target[-1]]


_INSIDE_LISTS: Mapping[str, type[Settings]] = {QUEUE_SECTION: CustomQueueConfig, ENTRY_SECTION: TaskSchedule}


def _key(section: str, name: str, comment: str) -> Key:
    target = _target(section, name)
    return Key(section=section, name=name, target=target, comment=comment, field=_field(section, target))


KEYS: Mapping[str, Key] = {
    f"{section}.{name}": _key(section, name, comment)
    for section, comments in COMMENTS.items()
    for name, comment in comments.items()
}
ENTRIES = Key(
    section="schedule",
    name="entries",
    target=("app", "schedule", "schedules"),
    comment="one table for each schedule",
    field=_field("schedule", ("app", "schedule", "schedules")),
)
