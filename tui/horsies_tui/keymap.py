"""Keys of the user's own, from `[tui.keys]`: checked at the start, for Textual drops in silence what collides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.errors import ConfigurationError, ErrorCode
from horsies_tui.actions import ACTIONS, BY_ID, Action, Place
from horsies_tui.glyphs import UNICODE, Glyphs

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPELLED = {
    "?": "question_mark", "/": "slash", "\\": "backslash", ":": "colon", ",": "comma", "-": "minus",
    "|": "vertical_line", "!": "exclamation_mark", "<": "less_than_sign", ">": "greater_than_sign",
    "[": "left_square_bracket", "]": "right_square_bracket", " ": "space", "esc": "escape",
    "pgdn": "pagedown", "pgup": "pageup",
}  # fmt: skip

DISPLAYED = {name: sign for sign, name in _SPELLED.items() if len(name) > len(sign)} | {
    "space": "spc", "escape": "Esc", "up": "↑", "down": "↓", "pagedown": "pgdn", "pageup": "pgup",
}  # fmt: skip


def shown_key(key: str, signs: Glyphs = UNICODE) -> str:
    """A key as the footer and the help write it: `^a`, `spc`, `?`."""
    if key == "enter":
        return signs.enter
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return DISPLAYED.get(key, key)


def keymap(wanted: Mapping[str, str]) -> dict[str, str]:
    """What Textual takes for these wishes; a `ConfigurationError` where one cannot be had.

    An empty text switches an action off. A key that some other action of the same place has is refused, and so is an
    action that changes the database on a key that is not a capital letter or a combination.
    """
    chosen = {action_id: _spelled(keys) for action_id, keys in wanted.items()}
    for action_id, keys in chosen.items():
        if action_id not in BY_ID:
            raise _refused(action_id, "there is no such action", hint="`?` in the TUI lists them")
        if BY_ID[action_id].mutates and not all(map(_is_deliberate, keys)):
            raise _refused(action_id, "an action that changes the database needs a capital letter or ctrl+…")
    _refuse_collisions({action.id: chosen.get(action.id, action.keys) for action in ACTIONS}, set(chosen))
    return {action_id: ",".join(keys) for action_id, keys in chosen.items()}


def _spelled(keys: str) -> tuple[str, ...]:
    given = keys.strip()
    parts = [given] if given == "," else [part.strip() for part in given.split(",")]
    return tuple(_SPELLED.get(part, part) for part in parts if part)


def _is_deliberate(key: str) -> bool:
    return (
        (len(key) == 1 and key.isupper()) or key.startswith(("ctrl+", "alt+")) or (key[:1] == "f" and key[1:].isdigit())
    )


def _refuse_collisions(keys: Mapping[str, tuple[str, ...]], changed: set[str]) -> None:
    for action_id in sorted(changed):
        for other in ACTIONS:
            taken = set(keys[action_id]) & set(keys[other.id])
            if other.id != action_id and taken and _meet(BY_ID[action_id], other):
                raise _refused(action_id, f"{', '.join(sorted(taken))} is the key of {other.id} already")


def _meet(one: Action, other: Action) -> bool:
    """Whether both can be had at the same time."""
    anywhere = {Place.APP, Place.LIST}
    return bool(one.where & other.where or one.where & anywhere or other.where & anywhere)


def _refused(action_id: str, why: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"tui.keys: {action_id}: {why}", code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
