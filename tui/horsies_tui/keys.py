"""The one table of actions. Bindings, footer, help, palette, `[tui.keys]` and the read-only rule all come from it.

An action's method is its id with an underscore, `action_op_requeue` for `op.requeue`; it stands on the screen, list or
app whose place is named in `where`. The screens themselves are `action_go` with the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from textual.binding import Binding

from horsies.errors import ConfigurationError, ErrorCode
from horsies_tui.theme import UNICODE, Glyphs

KEY_RULES: Final = (
    "Outside a preview, a lower-case key never changes the database.",
    "A capital letter changes it, and always opens a preview first (G, N and Y only move and copy).",
    "Esc goes one step back; it never quits.",
)


class Place(StrEnum):
    """Where an action can be had."""

    APP = "everywhere"
    LIST = "lists"
    DASHBOARD = "dash"
    QUEUES = "queues"
    TASKS = "tasks"
    TASK = "task"
    STALE = "stale"
    WORKERS = "workers"
    WORKFLOWS = "flows"
    SCHEDULES = "sched"
    EVENTS = "events"
    MAINTENANCE = "maint"


TABS: Final = {
    Place.DASHBOARD: "Dash",
    Place.QUEUES: "Queues",
    Place.TASKS: "Tasks",
    Place.STALE: "Stale",
    Place.WORKERS: "Workers",
    Place.WORKFLOWS: "Flows",
    Place.SCHEDULES: "Sched",
    Place.EVENTS: "Events",
    Place.MAINTENANCE: "Maint",
}
"""The main screens and their titles, in the order of their number keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAction:
    """Something that a key does: the same deed in every place, to whatever stands there."""

    id: str
    keys: tuple[str, ...]
    label: str
    """A word or two, for the footer."""
    labels: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """Other words, in places where those would promise something else."""
    help: str
    places: frozenset[Place]
    mutates: bool = False
    """Whether it can change the database: such an action is off when read-only, and while there is no connection."""
    is_in_footer: bool = True
    """Whether the footer has it where there is room; the help page always has."""

    @property
    def opens_text_input(self) -> bool:
        """Whether what is typed next is text: it is heeded before the next key is, however fast that comes."""
        return self.id in ("filter.edit", "app.palette", "view.limits")

    @property
    def method(self) -> str:
        """The name after `action_`."""
        return "go" if self.id.startswith("go.") else self.id.replace(".", "_")

    @property
    def textual_action(self) -> str:
        """What Textual is told to run."""
        return f"go('{self.id.removeprefix('go.')}')" if self.method == "go" else self.method

    def binding(self, place: Place) -> Binding:
        label = self.labels.get(place, self.label)
        return Binding(
            ",".join(self.keys),
            self.textual_action,
            label,
            show=self.is_in_footer,
            tooltip=self.help,
            id=self.id,
            priority=self.opens_text_input,
        )


_APP = frozenset({Place.APP})
_LIST = frozenset({Place.LIST})
_TASK_LISTS = frozenset({Place.TASKS, Place.STALE})
_FILTERED = frozenset(
    {Place.TASKS, Place.TASK, Place.WORKFLOWS, Place.EVENTS, Place.QUEUES, Place.WORKERS, Place.SCHEDULES}
)
_COPYABLE = frozenset(
    {Place.TASKS, Place.TASK, Place.STALE, Place.QUEUES, Place.WORKERS, Place.WORKFLOWS, Place.SCHEDULES}
)


def _hidden_action(action_id: str, keys: str, explanation: str, where: frozenset[Place]) -> KeyAction:
    return KeyAction(
        id=action_id, keys=tuple(keys.split()), label="", help=explanation, places=where, is_in_footer=False
    )


def _footer_action(
    action_id: str, keys: str, label: str, explanation: str, where: frozenset[Place], *, mutates: bool = False
) -> KeyAction:
    return KeyAction(
        id=action_id, keys=tuple(keys.split()), label=label, help=explanation, places=where, mutates=mutates
    )


# The footer shows them in this order and leaves out the last ones first.
ACTIONS: Final = (
    _footer_action("mark.toggle", "space", "mark", "mark the row and move down", _TASK_LISTS),
    _footer_action("mark.page", "a", "page", "mark all loaded rows", _TASK_LISTS),
    _footer_action(
        "mark.match", "ctrl+a", "match", "mark everything that matches the filter", frozenset({Place.TASKS})
    ),
    _footer_action(
        "op.sweep",
        "S",
        "sweep",
        "recover what is stale, now",
        frozenset({Place.STALE, Place.MAINTENANCE}),
        mutates=True,
    ),
    KeyAction(
        id="op.requeue",
        keys=("R",),
        label="requeue",
        labels={Place.WORKERS: "sweep it", Place.WORKFLOWS: "retry"},
        help="requeue; retry what ended; sweep after a worker; begin the failed nodes of a run again",
        places=frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.WORKERS, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.fail", "F", "fail", "mark as failed", frozenset({Place.TASKS, Place.TASK, Place.STALE}), mutates=True
    ),
    _footer_action(
        "op.expire",
        "X",
        "expire",
        "expire what has not started",
        frozenset({Place.TASKS, Place.TASK}),
        mutates=True,
    ),
    _footer_action(
        "op.cancel",
        "C",
        "cancel",
        "cancel",
        frozenset({Place.TASKS, Place.TASK, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.pause",
        "P",
        "pause/resume",
        "pause or resume the queue or workflow",
        frozenset({Place.QUEUES, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.cleanup",
        "D",
        "cleanup",
        "delete what retention no longer keeps, now",
        frozenset({Place.MAINTENANCE}),
        mutates=True,
    ),
    _footer_action(
        "plan.dry",
        "d",
        "dry-run",
        "what a sweep, or R on these rows, would do, without doing it",
        frozenset({Place.STALE, Place.MAINTENANCE, Place.TASKS, Place.TASK}),
    ),
    _footer_action("nav.open", "enter", "open", "open what the cursor is on", _LIST),
    KeyAction(
        id="filter.edit",
        keys=("slash",),
        label="filter",
        labels={Place.TASK: "search"},
        help="edit the filter; in a detail: search",
        places=_FILTERED,
    ),
    _footer_action(
        "filter.facets",
        "f",
        "facets",
        "pick states, queues, names and errors",
        frozenset({Place.TASKS, Place.EVENTS}),
    ),
    _footer_action(
        "view.sort",
        "s",
        "sort",
        "sort by another column; again: reverse",
        frozenset({Place.QUEUES, Place.WORKERS, Place.TASKS}),
    ),
    _footer_action("view.fold", "z", "fold", "fold or unfold all", frozenset({Place.WORKFLOWS, Place.EVENTS})),
    _footer_action("view.layers", "b", "layers", "tree or layers", frozenset({Place.WORKFLOWS})),
    _footer_action(
        "view.exclude",
        "x",
        "hide dull",
        "hide lost workers, good branches, rest",
        frozenset({Place.WORKERS, Place.WORKFLOWS, Place.SCHEDULES}),
    ),
    _footer_action(
        "view.limits", "comma", "limits", "other thresholds, for this session only", frozenset({Place.STALE})
    ),
    _footer_action("view.pager", "vertical_line", "pager", "open the payload in $PAGER", frozenset({Place.TASK})),
    _footer_action(
        "nav.events",
        "l",
        "log",
        "events of this thing; the whole operator log",
        frozenset({Place.TASK, Place.MAINTENANCE}),
    ),
    _footer_action(
        "nav.owner", "o", "owner", "what it belongs to: worker, workflow, queue", frozenset({Place.TASKS, Place.TASK})
    ),
    _footer_action("copy.id", "y", "copy", "copy the ids of the marked rows, or this one", _COPYABLE),
    _footer_action("app.palette", "colon ctrl+p", "command", "every command by name", _APP),
    _footer_action("app.help", "question_mark f1", "help", "the keys of this screen", _APP),
    _footer_action("app.quit", "q", "quit", "quit; from a detail: back", _APP),
    _hidden_action("filter.clear", "backslash", "clear the filter", _FILTERED),
    _hidden_action("find.next", "n", "the next hit of the search", frozenset({Place.TASK})),
    _hidden_action("find.prev", "N", "the hit before", frozenset({Place.TASK})),
    _hidden_action("mark.range", "v", "start or end a range of marks", _TASK_LISTS),
    _hidden_action("mark.none", "u", "clear the marks", _TASK_LISTS),
    _hidden_action("view.preview", "i", "show or hide the preview", frozenset({Place.TASKS})),
    _hidden_action("view.wide", "w", "all columns, moving sideways; or those that fit", frozenset({Place.TASKS})),
    _hidden_action("view.max", "m", "the list alone, or all around it", frozenset({Place.TASKS})),
    _hidden_action("copy.json", "Y", "copy the rows as JSON", frozenset({Place.TASKS, Place.TASK})),
    _hidden_action(
        "copy.cli",
        "c",
        "copy the command that shows this",
        frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.WORKFLOWS, Place.MAINTENANCE}),
    ),
    _hidden_action(
        "export.rows",
        "ctrl+s",
        "save the rows as JSON lines or CSV",
        frozenset({Place.TASKS, Place.EVENTS, Place.MAINTENANCE}),
    ),
    _hidden_action("live.pause", "p", "freeze the screen, or let it go on", _APP),
    _hidden_action("live.refresh", "r ctrl+r", "fetch now", _APP),
    _hidden_action("live.slower", "less_than_sign", "update less often", _APP),
    _hidden_action("live.faster", "greater_than_sign", "update more often", _APP),
    _hidden_action("view.theme", "t", "the next theme", _APP),
    _hidden_action("app.write", "exclamation_mark", "leave or enter read-only, for this session", _APP),
    _hidden_action("app.back", "escape", "one step back", _APP),
    _hidden_action("nav.last", "minus", "the screen before", _APP),
    _hidden_action(
        "nav.prev",
        "left_square_bracket",
        "the item before; a shorter time on charts",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden_action(
        "nav.next",
        "right_square_bracket",
        "the item after; a longer time on charts",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden_action(
        "nav.left",
        "h left",
        "fold the branch, or go up; columns to the left",
        frozenset({Place.WORKFLOWS, Place.TASKS}),
    ),
    _hidden_action(
        "nav.right", "l right", "show what is folded; columns to the right", frozenset({Place.WORKFLOWS, Place.TASKS})
    ),
    _hidden_action("nav.down", "j down", "down", _LIST),
    _hidden_action("nav.up", "k up", "up", _LIST),
    _hidden_action("nav.top", "g home", "the first row", _LIST),
    _hidden_action("nav.bottom", "G end", "the last row", _LIST),
    _hidden_action("nav.page_down", "ctrl+f pagedown", "a page down", _LIST),
    _hidden_action("nav.page_up", "ctrl+b pageup", "a page up", _LIST),
    _hidden_action("nav.half_down", "ctrl+d", "half a page down", _LIST),
    _hidden_action("nav.half_up", "ctrl+u", "half a page up", _LIST),
    *(
        _hidden_action(f"go.{place}", str(key), f"go to {title}", _APP)
        for key, (place, title) in enumerate(TABS.items(), 1)
    ),
)

ACTIONS_BY_ID: Final = {action.id: action for action in ACTIONS}
ACTIONS_BY_METHOD: Final = {action.method: action for action in ACTIONS}


def actions_at(place: Place) -> tuple[KeyAction, ...]:
    """Those that a place has of its own, in the order of the footer."""
    return tuple(action for action in ACTIONS if place in action.places)


def bindings(place: Place) -> list[Binding]:
    """What a screen or widget has as its `BINDINGS`."""
    return [action.binding(place) for action in actions_at(place)]


# Keys of the user's own, from `[tui.keys]`: checked at the start, for Textual drops in silence what collides.

_KEY_NAMES = {
    "?": "question_mark",
    "/": "slash",
    "\\": "backslash",
    ":": "colon",
    ",": "comma",
    "-": "minus",
    "|": "vertical_line",
    "!": "exclamation_mark",
    "<": "less_than_sign",
    ">": "greater_than_sign",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
    " ": "space",
    "esc": "escape",
    "pgdn": "pagedown",
    "pgup": "pageup",
}

KEY_LABELS = {name: sign for sign, name in _KEY_NAMES.items() if len(name) > len(sign)} | {
    "space": "spc",
    "escape": "Esc",
    "up": "↑",
    "down": "↓",
    "pagedown": "pgdn",
    "pageup": "pgup",
}


def key_label(key: str, glyphs: Glyphs = UNICODE) -> str:
    """A key as the footer and the help write it: `^a`, `spc`, `?`."""
    if key == "enter":
        return glyphs.enter
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return KEY_LABELS.get(key, key)


def build_keymap(overrides: Mapping[str, str]) -> dict[str, str]:
    """What Textual takes for these wishes; a `ConfigurationError` where one cannot be had.

    An empty text switches an action off. A key that some other action of the same place has is refused, and so is an
    action that changes the database on a key that is not a capital letter or a combination.
    """
    chosen = {action_id: _parse_keys(keys) for action_id, keys in overrides.items()}
    for action_id, keys in chosen.items():
        if action_id not in ACTIONS_BY_ID:
            raise _keymap_error(action_id, "there is no such action", hint="`?` in the TUI lists them")
        if ACTIONS_BY_ID[action_id].mutates and not all(map(_is_deliberate, keys)):
            raise _keymap_error(action_id, "an action that changes the database needs a capital letter or ctrl+…")
    _refuse_collisions({action.id: chosen.get(action.id, action.keys) for action in ACTIONS}, set(chosen))
    return {action_id: ",".join(keys) for action_id, keys in chosen.items()}


def _parse_keys(keys: str) -> tuple[str, ...]:
    given = keys.strip()
    parts = [given] if given == "," else [part.strip() for part in given.split(",")]
    return tuple(_KEY_NAMES.get(part, part) for part in parts if part)


def _is_deliberate(key: str) -> bool:
    return (
        (len(key) == 1 and key.isupper()) or key.startswith(("ctrl+", "alt+")) or (key[:1] == "f" and key[1:].isdigit())
    )


def _refuse_collisions(keys: Mapping[str, tuple[str, ...]], changed: set[str]) -> None:
    for action_id in sorted(changed):
        for other in ACTIONS:
            taken = set(keys[action_id]) & set(keys[other.id])
            if other.id != action_id and taken and _are_active_together(ACTIONS_BY_ID[action_id], other):
                raise _keymap_error(action_id, f"{', '.join(sorted(taken))} is the key of {other.id} already")


def _are_active_together(one: KeyAction, other: KeyAction) -> bool:
    """Whether both can be had at the same time."""
    anywhere = {Place.APP, Place.LIST}
    return bool(one.places & other.places or one.places & anywhere or other.places & anywhere)


def _keymap_error(action_id: str, why: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"tui.keys: {action_id}: {why}", code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
