"""Arguments and results as text: secrets masked at this one place, cut to what a screen can bear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from horsies_tui.format import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.settings import TuiConfig
    from horsies_ops.reads.tasks import TaskFacts

MASK: Final = "••••••"
MOST_LINES: Final = 400
MOST_CHARACTERS: Final = 65_536
_LONGEST_SIGN: Final = 6
"""How many characters stand for one that a terminal would obey."""


def shown(value: Any, settings: TuiConfig) -> Any:
    """`value` as `tui.show_args` allows it to be seen: whole, masked or not at all."""
    match settings.show_args:
        case "all":
            return value
        case "never":
            return MASK
        case "masked":
            return masked(value, [re.compile(pattern, re.IGNORECASE) for pattern in settings.mask_keys])


def masked(value: Any, patterns: Sequence[re.Pattern[str]]) -> Any:
    """`value` with everything under a name that one of the patterns is found in replaced, at any depth."""
    match value:
        case Mapping():
            entries = cast("Mapping[object, Any]", value).items()
            return {
                str(key): MASK if any(pattern.search(str(key)) for pattern in patterns) else masked(item, patterns)
                for key, item in entries
            }
        case list() | tuple():
            return [masked(item, patterns) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def one_line(value: Any, settings: TuiConfig) -> str:
    """As JSON on one line; whoever draws it cuts it."""
    return json.dumps(shown(value, settings), ensure_ascii=False, default=str)


def given(task: TaskFacts) -> Any:
    """The arguments of a task as one document."""
    return task.kwargs if not task.args else {"args": task.args, **task.kwargs}


def whole(value: Any, settings: TuiConfig) -> str:
    """As indented JSON, harmless line by line."""
    text = json.dumps(shown(value, settings), ensure_ascii=False, indent=2, default=str)
    return "\n".join(clean(line, limit=_LONGEST_SIGN * len(line) + 1) for line in text.split("\n"))


def pretty(value: Any, settings: TuiConfig) -> str:
    """The same, but no more than a screen can bear."""
    lines = whole(value, settings)[:MOST_CHARACTERS].split("\n")
    more = ["…"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])
