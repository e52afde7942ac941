"""All settings as rows for people, with their origins and without their secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from horsies.config.assembly import value_at
from horsies.config.comments import COMMENTS
from horsies.config.keys import ENTRIES, ENTRY_SECTION, KEYS, QUEUE_SECTION
from horsies.model.settings import DatabaseUrl, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    patterns = [re.compile(pattern, re.IGNORECASE) for pattern in loaded.tui.mask_keys]

    def is_secret(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    return tuple(
        Row(
            key=key,
            value=_shown(value_at(getattr(loaded, target[0]), target[1:]), is_secret),
            origin=loaded.origin_of(target),
        )
        for key, target in _rows(loaded)
    )


def _rows(loaded: LoadedSettings) -> Iterator[tuple[str, Target]]:
    for section, names in COMMENTS.items():
        if section == QUEUE_SECTION:
            for queue in loaded.app.custom_queues or ():
                yield from (
                    (f"queues.{queue.name}.{name}", ("app", "custom_queues", queue.name, name)) for name in names
                )
        elif section == ENTRY_SECTION:
            yield ENTRIES.path, ENTRIES.target
        else:
            keys = (KEYS[f"{section}.{name}"] for name in names)
            yield from ((key.path, key.target) for key in keys)


def _shown(value: Any, is_secret: Callable[[str], bool]) -> Any:
    match value:
        case DatabaseUrl():
            return value.masked
        case Enum():
            return value.value
        case Settings():
            return _shown({name: getattr(value, name) for name in type(value).model_fields}, is_secret)
        case list() | tuple():
            return [_shown(item, is_secret) for item in cast("list[Any]", value)]
        case Mapping():
            table = {str(name): item for name, item in cast("Mapping[Any, Any]", value).items()}
            return {name: HIDDEN if is_secret(name) else _shown(item, is_secret) for name, item in table.items()}
        case date() | time():
            return value.isoformat()
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)  # nan and inf, which JSON cannot hold, and values that only code can give
