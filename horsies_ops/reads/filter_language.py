"""One line of text for a filter, as operators type it: `status:failed,expired queue:mail age<1h -name:mail.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies_ops.reads.filter import TaskFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFault:
    """What is wrong with a filter, and where: `position` counts characters from 0."""

    position: int
    message: str
    hint: str


def parse_filter(text: str) -> TaskFilter | FilterFault:
    """The filter that `text` says, or the first thing wrong with it."""
    raise NotImplementedError


def filter_text(wanted: TaskFilter) -> str:
    """The shortest text from which `parse_filter` makes this filter."""
    raise NotImplementedError
