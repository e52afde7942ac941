"""Where a value came from, and which of two origins wins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horsies.config.keys import Target
    from horsies.errors import SourceLocation
    from horsies.model.settings.fault import Path as Place


class Rank(IntEnum):
    """Origins in their order: a later one replaces an earlier one."""

    DEFAULT = 0
    FALLBACK = 1
    FOUND_FILE = 2
    CODE = 3
    NAMED_FILE = 4
    ENVIRONMENT = 5
    OPTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An origin as `config show` prints it; `source` is empty for values that need no introduction."""

    rank: Rank
    source: str = ""
    location: SourceLocation | None = None
    inside: Mapping[Place, SourceLocation] = field(default_factory=dict["Place", "SourceLocation"], repr=False)

    def __str__(self) -> str:
        if self.location is not None:
            return str(self.location)
        return self.source or self.rank.name.lower()

    def within(self, path: Place) -> Origin:
        """The origin of what stands at `path` inside a value that is a list or a table."""
        for length in range(len(path), 0, -1):
            if location := self.inside.get(path[:length]):
                return replace(self, location=location)
        return self


DEFAULT = Origin(rank=Rank.DEFAULT)
CODE = Origin(rank=Rank.CODE)
OPTION = Origin(rank=Rank.OPTION, source="command line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value for the setting at `target`; left out of the repr, for it may hold a password."""

    target: Target
    value: Any = field(repr=False)
    origin: Origin
