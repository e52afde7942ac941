"""From a name as somebody wrote it to the key it means, or to what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.config.comments import COMMENTS
from horsies.config.keys import ENTRIES, ENTRY_SECTION, KEYS, QUEUE_SECTION, Key
from horsies.errors import ErrorCode
from horsies.model.settings import Fault, RetentionConfig
from horsies.model.settings.findings import moved
from horsies.model.settings.wording import unknown_key

if TYPE_CHECKING:
    from horsies.config.keys import Target

SECTIONS = tuple(dict.fromkeys(section.partition(".")[0] for section in COMMENTS))

_MOVED = {
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


def look_up(path: Target) -> Key | Fault:
    """The key at `path` (`("queues", "mail", "priority")`), or a fault that names the nearest or the new place."""
    section, name = path[0], path[-1]
    pattern = QUEUE_SECTION if section == "queues" else section
    key = ENTRIES if path == ("schedule", "entries") else KEYS.get(f"{pattern}.{name}")
    if key is not None and len(path) == pattern.count(".") + 2:
        return key
    return _new_place(path) or _nearest(path, pattern)


def _new_place(path: Target) -> Fault | None:
    written = ".".join(path)
    if path[0] == "retention" and path[-1] in RetentionConfig.elsewhere:
        return moved(path, RetentionConfig.elsewhere[path[-1]], code=ErrorCode.CONFIG_INVALID_RETENTION)
    if place := _MOVED.get(written):
        return moved(path, place)
    places = [key.path for key in KEYS.values() if key.name == path[-1] and key.section in _DISTINCT]
    return moved(path, places[0]) if places else None


# Their keys have names that mean the same wherever somebody puts them.
_DISTINCT = frozenset(COMMENTS) - {QUEUE_SECTION, ENTRY_SECTION, "schedule", "tui"}


def _nearest(path: Target, pattern: str) -> Fault:
    if path == ("queues",) or (path[0] == "queues" and len(path) == 2):
        text = "must be a table with the name of a queue, [queues.NAME]"
        return Fault(path=path, text=text, code=ErrorCode.CONFIG_INVALID_QUEUE_MODE)
    if len(path) == 1 and path[0] in SECTIONS:
        return Fault(path=path, text=f"must be a table, [{path[0]}]", code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 1 or path[0] not in SECTIONS:
        text, hint = unknown_key(path[0], SECTIONS)
        return Fault(path=path[:1], text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    if len(path) == 2 and path[1] in SECTIONS:  # in TOML a dotted key counts from the table above it
        hint = f"a section: move it above [{path[0]}], or into [{path[1]}]"
        return Fault(path=path, text="unknown key", hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
    text, hint = unknown_key(path[-1], COMMENTS[pattern])
    return Fault(path=path, text=text, hint=hint, code=ErrorCode.CONFIG_UNKNOWN_KEY)
