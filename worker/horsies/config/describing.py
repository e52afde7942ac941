"""All settings as rows for people, with their origins and without their secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from horsies.config.assembly import value_at
from horsies.config.keys import ENTRIES, ENTRY_SECTION, KEYS, QUEUE_SECTION
from horsies.model.settings import DatabaseUrl, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horsies.config.keys import Target
    from horsies.config.loading import LoadedSettings
    from horsies.config.origin import Origin

HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting: its key, its value as plain data that JSON can hold, and its origin."""

    key: str
    value: Any
    origin: Origin


def describe(loaded: LoadedSettings) -> tuple[Row, ...]:
    """Every setting in the order of horsies.toml, passwords hidden."""
    hide = re.compile("|".join(f"(?:{pattern})" for pattern in loaded.tui.mask_keys) or r"(?!)", re.IGNORECASE)
    return tuple(
        Row(
            key=key,
            value=_shown(value_at(getattr(loaded, target[0]), target[1:]), hide),
            origin=loaded.origin_of(target),
        )
        for key, target in _rows(loaded)
    )


def _rows(loaded: LoadedSettings) -> Iterator[tuple[str, Target]]:
    for key in KEYS.values():
        if key.section == QUEUE_SECTION:
            for queue in loaded.app.custom_queues or ():
                yield f"queues.{queue.name}.{key.name}", ("app", "custom_queues", queue.name, key.name)
        elif key.section != ENTRY_SECTION:
            yield key.path, key.target
    yield ENTRIES.path, ENTRIES.target


def _shown(value: Any, hide: re.Pattern[str]) -> Any:
    match value:
        case DatabaseUrl():
            return value.masked
        case Enum():
            return value.value
        case Settings():
            return _shown({name: getattr(value, name) for name in type(value).model_fields}, hide)
        case list() | tuple():
            return [_shown(item, hide) for item in cast("list[Any]", value)]
        case dict():
            table = cast("Mapping[str, Any]", value)
            return {name: HIDDEN if hide.search(name) else _shown(item, hide) for name, item in table.items()}
        case _:
            return value
