"""The lines on which the tables and keys of a TOML file stand, by a glance at their starts; tomllib does not tell."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies.config.keys import Target
    from horsies.model.settings.fault import Path as Place

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*(?:\.|$)""")


def lines_of(text: str) -> Iterator[tuple[Place, int]]:
    """Each table and key with its line; the items of a list of tables are counted from 0."""
    table: Place = ()
    lists: Counter[Place] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)([^\[\]]+)\]", line):
            name = _parts(header[2])
            if header[1] == "[[":
                lists[name] += 1
                if lists[name] == 1:
                    yield name, number
            table = _in_latest_item(name, lists)
            yield table, number
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            yield table + _parts(key[1]), number


def _in_latest_item(name: Place, lists: Counter[Place]) -> Place:
    """`schedule.entries.pattern` as `schedule.entries[1].pattern` once a second entry was begun."""
    for length in range(len(name), 0, -1):
        if count := lists[name[:length]]:
            return (*name[:length], count - 1, *name[length:])
    return name


def _parts(name: str) -> Target:
    return tuple("".join(part) for part in _PART.findall(name))
