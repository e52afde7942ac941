"""Arguments and results as text: secrets masked at this one place, cut to what a screen can bear."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from textual.widgets import TextArea

from horsies_tui.format import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.model.settings import TuiConfig

MASK: Final = "••••••"
MOST_LINES: Final = 400
MOST_CHARACTERS: Final = 65_536


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


def pretty(value: Any, settings: TuiConfig) -> str:
    """As indented JSON, harmless line by line, and no more than a screen can bear."""
    text = json.dumps(shown(value, settings), ensure_ascii=False, indent=2, default=str)[:MOST_CHARACTERS]
    lines = text.split("\n")
    more = ["…"] if len(lines) > MOST_LINES else []
    return "\n".join([clean(line) for line in lines[:MOST_LINES]] + more)


class Payload(TextArea):
    """A document to read and search, not to change."""

    def __init__(self, *, name: str) -> None:
        super().__init__("", read_only=True, show_cursor=False, soft_wrap=True, id=name, compact=True)

    def show(self, value: Any, settings: TuiConfig) -> None:
        text = pretty(value, settings)
        if text != self.text:
            self.load_text(text)
