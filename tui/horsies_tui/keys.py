"""The one table of actions. Bindings, footer, help, palette, `[tui.keys]` and the read-only rule all come from it.

An action's method is its id with an underscore, `action_op_requeue` for `op.requeue`; it stands on the screen, list or
app whose place is named in `where`. The screens themselves are `action_go` with the place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from textual.binding import Binding

from horsies.errors import ConfigurationError, ErrorCode
from horsies_tui.theme import UNICODE, Glyphs

if TYPE_CHECKING:
    from collections.abc import Mapping


RULES: Final = (
    "Outside a preview, a lower-case key never changes the database.",
    "A capital letter changes it, and always opens a preview first (G, N and Y only move and copy).",
    "Esc goes one step back; it never quits.",
)


class Place(StrEnum):
    """Where an action can be had."""

    APP = "everywhere"
    LIST = "lists"
    DASH = "dash"
    QUEUES = "queues"
    TASKS = "tasks"
    TASK = "task"
    STALE = "stale"
    WORKERS = "workers"
    FLOWS = "flows"
    SCHED = "sched"
    EVENTS = "events"
    MAINT = "maint"


TABS: Final = {
    Place.DASH: "Dash",
    Place.QUEUES: "Queues",
    Place.TASKS: "Tasks",
    Place.STALE: "Stale",
    Place.WORKERS: "Workers",
    Place.FLOWS: "Flows",
    Place.SCHED: "Sched",
    Place.EVENTS: "Events",
    Place.MAINT: "Maint",
}
"""The main screens and their titles, in the order of their number keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a key does: the same deed in every place, to whatever stands there."""

    id: str
    keys: tuple[str, ...]
    label: str
    """A word or two, for the footer."""
    labels: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """Other words, in places where those would promise something else."""
    help: str
    where: frozenset[Place]
    mutates: bool = False
    """Whether it can change the database: such an action is off when read-only, and while there is no connection."""
    is_shown: bool = True
    """Whether the footer has it where there is room; the help page always has."""

    @property
    def takes_keyboard(self) -> bool:
        """Whether what is typed next is text: it is heeded before the next key is, however fast that comes."""
        return self.id in ("filter.edit", "app.palette", "view.limits")

    @property
    def method(self) -> str:
        """The name after `action_`."""
        return "go" if self.id.startswith("go.") else self.id.replace(".", "_")

    @property
    def call(self) -> str:
        """What Textual is told to run."""
        return f"go('{self.id.removeprefix('go.')}')" if self.method == "go" else self.method

    def binding(self, place: Place) -> Binding:
        label = self.labels.get(place, self.label)
        return Binding(
            ",".join(self.keys),
            self.call,
            label,
            show=self.is_shown,
            tooltip=self.help,
            id=self.id,
            priority=self.takes_keyboard,
        )


_APP = frozenset({Place.APP})
_LIST = frozenset({Place.LIST})
_ROWS = frozenset({Place.TASKS, Place.STALE})
_FILTERED = frozenset({Place.TASKS, Place.TASK, Place.FLOWS, Place.EVENTS, Place.QUEUES, Place.WORKERS, Place.SCHED})
_THINGS = frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.QUEUES, Place.WORKERS, Place.FLOWS, Place.SCHED})


def _hidden(action_id: str, keys: str, explanation: str, where: frozenset[Place]) -> Action:
    return Action(id=action_id, keys=tuple(keys.split()), label="", help=explanation, where=where, is_shown=False)


def _shown(
    action_id: str, keys: str, label: str, explanation: str, where: frozenset[Place], *, mutates: bool = False
) -> Action:
    return Action(id=action_id, keys=tuple(keys.split()), label=label, help=explanation, where=where, mutates=mutates)


# The footer shows them in this order and leaves out the last ones first.
ACTIONS: Final = (
    _shown("mark.toggle", "space", "mark", "mark the row and move down", _ROWS),
    _shown("mark.page", "a", "page", "mark all loaded rows", _ROWS),
    _shown("mark.match", "ctrl+a", "match", "mark everything that matches the filter", frozenset({Place.TASKS})),
    _shown("op.sweep", "S", "sweep", "recover what is stale, now", frozenset({Place.STALE, Place.MAINT}), mutates=True),
    Action(
        id="op.requeue",
        keys=("R",),
        label="requeue",
        labels={Place.WORKERS: "sweep it", Place.FLOWS: "retry"},
        help="requeue; retry what ended; sweep after a worker; begin the failed nodes of a run again",
        where=frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.WORKERS, Place.FLOWS}),
        mutates=True,
    ),
    _shown("op.fail", "F", "fail", "mark as failed", frozenset({Place.TASKS, Place.TASK, Place.STALE}), mutates=True),
    _shown(
        "op.expire",
        "X",
        "expire",
        "expire what has not started",
        frozenset({Place.TASKS, Place.TASK}),
        mutates=True,
    ),
    _shown(
        "op.cancel",
        "C",
        "cancel",
        "cancel",
        frozenset({Place.TASKS, Place.TASK, Place.FLOWS}),
        mutates=True,
    ),
    _shown(
        "op.pause",
        "P",
        "pause/resume",
        "pause or resume the queue or workflow",
        frozenset({Place.QUEUES, Place.FLOWS}),
        mutates=True,
    ),
    _shown(
        "op.cleanup",
        "D",
        "cleanup",
        "delete what retention no longer keeps, now",
        frozenset({Place.MAINT}),
        mutates=True,
    ),
    _shown(
        "plan.dry",
        "d",
        "dry-run",
        "what a sweep, or R on these rows, would do, without doing it",
        frozenset({Place.STALE, Place.MAINT, Place.TASKS, Place.TASK}),
    ),
    _shown("nav.open", "enter", "open", "open what the cursor is on", _LIST),
    Action(
        id="filter.edit",
        keys=("slash",),
        label="filter",
        labels={Place.TASK: "search"},
        help="edit the filter; in a detail: search",
        where=_FILTERED,
    ),
    _shown(
        "filter.facets",
        "f",
        "facets",
        "pick states, queues, names and errors",
        frozenset({Place.TASKS, Place.EVENTS}),
    ),
    _shown(
        "view.sort",
        "s",
        "sort",
        "sort by another column; again: reverse",
        frozenset({Place.QUEUES, Place.WORKERS, Place.TASKS}),
    ),
    _shown("view.fold", "z", "fold", "fold or unfold all", frozenset({Place.FLOWS, Place.EVENTS})),
    _shown("view.layers", "b", "layers", "tree or layers", frozenset({Place.FLOWS})),
    _shown(
        "view.exclude",
        "x",
        "hide dull",
        "hide lost workers, good branches, rest",
        frozenset({Place.WORKERS, Place.FLOWS, Place.SCHED}),
    ),
    _shown("view.limits", "comma", "limits", "other thresholds, for this session only", frozenset({Place.STALE})),
    _shown("view.pager", "vertical_line", "pager", "open the payload in $PAGER", frozenset({Place.TASK})),
    _shown(
        "nav.events", "l", "log", "events of this thing; the whole operator log", frozenset({Place.TASK, Place.MAINT})
    ),
    _shown(
        "nav.owner", "o", "owner", "what it belongs to: worker, workflow, queue", frozenset({Place.TASKS, Place.TASK})
    ),
    _shown("copy.id", "y", "copy", "copy the ids of the marked rows, or this one", _THINGS),
    _shown("app.palette", "colon ctrl+p", "command", "every command by name", _APP),
    _shown("app.help", "question_mark f1", "help", "the keys of this screen", _APP),
    _shown("app.quit", "q", "quit", "quit; from a detail: back", _APP),
    _hidden("filter.clear", "backslash", "clear the filter", _FILTERED),
    _hidden("find.next", "n", "the next hit of the search", frozenset({Place.TASK})),
    _hidden("find.prev", "N", "the hit before", frozenset({Place.TASK})),
    _hidden("mark.range", "v", "start or end a range of marks", _ROWS),
    _hidden("mark.none", "u", "clear the marks", _ROWS),
    _hidden("view.preview", "i", "show or hide the preview", frozenset({Place.TASKS})),
    _hidden("view.wide", "w", "all columns, moving sideways; or those that fit", frozenset({Place.TASKS})),
    _hidden("view.max", "m", "the list alone, or all around it", frozenset({Place.TASKS})),
    _hidden("copy.json", "Y", "copy the rows as JSON", frozenset({Place.TASKS, Place.TASK})),
    _hidden(
        "copy.cli",
        "c",
        "copy the command that shows this",
        frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.FLOWS, Place.MAINT}),
    ),
    _hidden(
        "export.rows",
        "ctrl+s",
        "save the rows as JSON lines or CSV",
        frozenset({Place.TASKS, Place.EVENTS, Place.MAINT}),
    ),
    _hidden("live.pause", "p", "freeze the screen, or let it go on", _APP),
    _hidden("live.refresh", "r ctrl+r", "fetch now", _APP),
    _hidden("live.slower", "less_than_sign", "update less often", _APP),
    _hidden("live.faster", "greater_than_sign", "update more often", _APP),
    _hidden("view.theme", "t", "the next theme", _APP),
    _hidden("app.write", "exclamation_mark", "leave or enter read-only, for this session", _APP),
    _hidden("app.back", "escape", "one step back", _APP),
    _hidden("nav.last", "minus", "the screen before", _APP),
    _hidden(
        "nav.prev",
        "left_square_bracket",
        "the item before; a shorter time on charts",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden(
        "nav.next",
        "right_square_bracket",
        "the item after; a longer time on charts",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden(
        "nav.left", "h left", "fold the branch, or go up; columns to the left", frozenset({Place.FLOWS, Place.TASKS})
    ),
    _hidden("nav.right", "l right", "show what is folded; columns to the right", frozenset({Place.FLOWS, Place.TASKS})),
    _hidden("nav.down", "j down", "down", _LIST),
    _hidden("nav.up", "k up", "up", _LIST),
    _hidden("nav.top", "g home", "the first row", _LIST),
    _hidden("nav.bottom", "G end", "the last row", _LIST),
    _hidden("nav.page_down", "ctrl+f pagedown", "a page down", _LIST),
    _hidden("nav.page_up", "ctrl+b pageup", "a page up", _LIST),
    _hidden("nav.half_down", "ctrl+d", "half a page down", _LIST),
    _hidden("nav.half_up", "ctrl+u", "half a page up", _LIST),
    *(_hidden(f"go.{place}", str(key), f"go to {title}", _APP) for key, (place, title) in enumerate(TABS.items(), 1)),
)

BY_ID: Final = {action.id: action for action in ACTIONS}
BY_METHOD: Final = {action.method: action for action in ACTIONS}


def actions_at(place: Place) -> tuple[Action, ...]:
    """Those that a place has of its own, in the order of the footer."""
    return tuple(action for action in ACTIONS if place in action.where)


def bindings(place: Place) -> list[Binding]:
    """What a screen or widget has as its `BINDINGS`."""
    return [action.binding(place) for action in actions_at(place)]


# Keys of the user's own, from `[tui.keys]`: checked at the start, for Textual drops in silence what collides.

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
