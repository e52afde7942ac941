"""The table of actions: key bindings, footer, help, palette, `[tui.keys]` and the read-only rule all come from it.

`op.requeue` is implemented by the method `action_op_requeue` of the screen, list or app named in `places`.
`go.queues` and the other screens are `action_go` with the place as its argument.
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
    "Esc goes back one step; it never quits.",
)


class Place(StrEnum):
    """Where an action is available."""

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
"""The main screens and their tab titles, in the order of their number keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAction:
    """An action and its keys. A key has the same meaning in every place."""

    id: str
    keys: tuple[str, ...]
    label: str
    """One or two words for the footer."""
    labels: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """Footer labels of places where `label` would be misleading."""
    help: str
    places: frozenset[Place]
    mutates: bool = False
    """Whether it can change the database. Disabled in read-only mode and while disconnected."""
    is_in_footer: bool = True
    """Whether the footer shows it if there is room; the help always does."""

    @property
    def opens_text_input(self) -> bool:
        """Whether it focuses a text input. Runs with priority, so that the next key already goes to the input."""
        return self.id in ("filter.edit", "app.palette", "view.limits")

    @property
    def method(self) -> str:
        """Name of the method, without `action_`."""
        return "go" if self.id.startswith("go.") else self.id.replace(".", "_")

    @property
    def textual_action(self) -> str:
        """The action in Textual's syntax."""
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


def _hidden_action(action_id: str, keys: str, help_text: str, places: frozenset[Place]) -> KeyAction:
    return KeyAction(
        id=action_id, keys=tuple(keys.split()), label="", help=help_text, places=places, is_in_footer=False
    )


def _footer_action(
    action_id: str, keys: str, label: str, help_text: str, places: frozenset[Place], *, mutates: bool = False
) -> KeyAction:
    return KeyAction(
        id=action_id, keys=tuple(keys.split()), label=label, help=help_text, places=places, mutates=mutates
    )


# In footer order: where there is no room, the footer drops the last ones first.
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
        "run the sweep now: recover stale tasks",
        frozenset({Place.STALE, Place.MAINTENANCE}),
        mutates=True,
    ),
    KeyAction(
        id="op.requeue",
        keys=("R",),
        label="requeue",
        labels={Place.WORKERS: "recover", Place.WORKFLOWS: "retry"},
        help="requeue or retry tasks; recover the tasks of a worker; retry the failed nodes of a run",
        places=frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.WORKERS, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.fail", "F", "fail", "mark tasks as failed", frozenset({Place.TASKS, Place.TASK, Place.STALE}), mutates=True
    ),
    _footer_action(
        "op.expire",
        "X",
        "expire",
        "expire tasks that have not started",
        frozenset({Place.TASKS, Place.TASK}),
        mutates=True,
    ),
    _footer_action(
        "op.cancel",
        "C",
        "cancel",
        "cancel tasks or a workflow run",
        frozenset({Place.TASKS, Place.TASK, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.pause",
        "P",
        "pause/resume",
        "pause or resume a queue or workflow run",
        frozenset({Place.QUEUES, Place.WORKFLOWS}),
        mutates=True,
    ),
    _footer_action(
        "op.cleanup",
        "D",
        "cleanup",
        "run the cleanup now: delete rows past their retention",
        frozenset({Place.MAINTENANCE}),
        mutates=True,
    ),
    _footer_action(
        "plan.dry",
        "d",
        "dry-run",
        "dry run: preview a sweep, or R on these rows, without changes",
        frozenset({Place.STALE, Place.MAINTENANCE, Place.TASKS, Place.TASK}),
    ),
    _footer_action("nav.open", "enter", "open", "open the row under the cursor", _LIST),
    KeyAction(
        id="filter.edit",
        keys=("slash",),
        label="filter",
        labels={Place.TASK: "search"},
        help="edit the filter; in a task: search",
        places=_FILTERED,
    ),
    _footer_action(
        "filter.facets",
        "f",
        "facets",
        "choose states, queues, names and errors, with counts",
        frozenset({Place.TASKS, Place.EVENTS}),
    ),
    _footer_action(
        "view.sort",
        "s",
        "sort",
        "choose the sort column; again: reverse the order",
        frozenset({Place.QUEUES, Place.WORKERS, Place.TASKS}),
    ),
    _footer_action("view.fold", "z", "fold", "collapse or expand all", frozenset({Place.WORKFLOWS, Place.EVENTS})),
    _footer_action("view.layers", "b", "layers", "switch between tree and layers", frozenset({Place.WORKFLOWS})),
    _footer_action(
        "view.exclude",
        "x",
        "hide healthy",
        "hide lost workers, completed branches, disabled schedules",
        frozenset({Place.WORKERS, Place.WORKFLOWS, Place.SCHEDULES}),
    ),
    _footer_action("view.limits", "comma", "limits", "set the thresholds for this session", frozenset({Place.STALE})),
    _footer_action(
        "view.pager", "vertical_line", "pager", "open arguments and result in $PAGER", frozenset({Place.TASK})
    ),
    _footer_action(
        "nav.events",
        "l",
        "log",
        "events of this task; the operator log",
        frozenset({Place.TASK, Place.MAINTENANCE}),
    ),
    _footer_action(
        "nav.owner", "o", "owner", "go to its worker, workflow or queue", frozenset({Place.TASKS, Place.TASK})
    ),
    _footer_action("copy.id", "y", "copy", "copy the ids of the marked rows, or of this one", _COPYABLE),
    _footer_action("app.palette", "colon ctrl+p", "command", "command palette", _APP),
    _footer_action("app.help", "question_mark f1", "help", "show the keys of this screen", _APP),
    _footer_action("app.quit", "q", "quit", "quit; in a detail: go back", _APP),
    _hidden_action("filter.clear", "backslash", "clear the filter", _FILTERED),
    _hidden_action("find.next", "n", "go to the next search match", frozenset({Place.TASK})),
    _hidden_action("find.prev", "N", "go to the previous search match", frozenset({Place.TASK})),
    _hidden_action("mark.range", "v", "start or end a range of marks", _TASK_LISTS),
    _hidden_action("mark.none", "u", "clear all marks", _TASK_LISTS),
    _hidden_action("view.preview", "i", "show or hide the preview", frozenset({Place.TASKS})),
    _hidden_action(
        "view.wide", "w", "show all columns and scroll sideways, or only those that fit", frozenset({Place.TASKS})
    ),
    _hidden_action("view.max", "m", "maximise the list, or restore", frozenset({Place.TASKS})),
    _hidden_action("copy.json", "Y", "copy the rows as JSON", frozenset({Place.TASKS, Place.TASK})),
    _hidden_action(
        "copy.cli",
        "c",
        "copy the equivalent horsies command",
        frozenset({Place.TASKS, Place.TASK, Place.STALE, Place.WORKFLOWS, Place.MAINTENANCE}),
    ),
    _hidden_action(
        "export.rows",
        "ctrl+s",
        "export the rows as JSON lines or CSV",
        frozenset({Place.TASKS, Place.EVENTS, Place.MAINTENANCE}),
    ),
    _hidden_action("live.pause", "p", "freeze or resume updates", _APP),
    _hidden_action("live.refresh", "r ctrl+r", "refresh now", _APP),
    _hidden_action("live.slower", "less_than_sign", "refresh less often", _APP),
    _hidden_action("live.faster", "greater_than_sign", "refresh more often", _APP),
    _hidden_action("view.theme", "t", "switch to the next theme", _APP),
    _hidden_action("app.write", "exclamation_mark", "enable or disable actions for this session (read-only)", _APP),
    _hidden_action("app.back", "escape", "go back one step", _APP),
    _hidden_action("nav.last", "minus", "return to the previous screen", _APP),
    _hidden_action(
        "nav.prev",
        "left_square_bracket",
        "previous item; on charts: a shorter time range",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden_action(
        "nav.next",
        "right_square_bracket",
        "next item; on charts: a longer time range",
        frozenset({Place.TASK, Place.WORKERS}),
    ),
    _hidden_action(
        "nav.left",
        "h left",
        "collapse the branch or go to its parent; scroll columns left",
        frozenset({Place.WORKFLOWS, Place.TASKS}),
    ),
    _hidden_action(
        "nav.right", "l right", "expand the branch; scroll columns right", frozenset({Place.WORKFLOWS, Place.TASKS})
    ),
    _hidden_action("nav.down", "j down", "move down", _LIST),
    _hidden_action("nav.up", "k up", "move up", _LIST),
    _hidden_action("nav.top", "g home", "go to the first row", _LIST),
    _hidden_action("nav.bottom", "G end", "go to the last row", _LIST),
    _hidden_action("nav.page_down", "ctrl+f pagedown", "page down", _LIST),
    _hidden_action("nav.page_up", "ctrl+b pageup", "page up", _LIST),
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
    """The actions of a place itself, in footer order."""
    return tuple(action for action in ACTIONS if place in action.places)


def bindings(place: Place) -> list[Binding]:
    """The `BINDINGS` of a screen or widget."""
    return [action.binding(place) for action in actions_at(place)]


# Key names and the user's keymap (`[tui.keys]`)

_KEY_NAMES: Final = {
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

KEY_LABELS: Final = {name: sign for sign, name in _KEY_NAMES.items() if len(name) > len(sign)} | {
    "space": "space",
    "escape": "Esc",
    "up": "↑",
    "down": "↓",
    "pagedown": "pgdn",
    "pageup": "pgup",
}


def key_label(key: str, glyphs: Glyphs = UNICODE) -> str:
    """A key as shown in the footer and the help: `^a`, `space`, `?`."""
    if key == "enter":
        return glyphs.enter
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return KEY_LABELS.get(key, key)


def build_keymap(overrides: Mapping[str, str]) -> dict[str, str]:
    """Textual's keymap for the user's keys by action id; an empty text disables an action.

    Raises ConfigurationError for an unknown action, a key that another action in the same place uses (Textual would
    silently drop one of the two), and a plain lower-case key for an action that changes the database.
    """
    chosen = {action_id: _parse_keys(keys) for action_id, keys in overrides.items()}
    for action_id, keys in chosen.items():
        if action_id not in ACTIONS_BY_ID:
            raise _keymap_error(action_id, "unknown action", hint="press ? in the TUI for a list of actions")
        if ACTIONS_BY_ID[action_id].mutates and not all(map(_is_deliberate, keys)):
            allowed = "a capital letter, ctrl+, alt+ or a function key"
            raise _keymap_error(action_id, f"an action that changes the database needs {allowed}")
    _reject_collisions({action.id: chosen.get(action.id, action.keys) for action in ACTIONS}, set(chosen))
    return {action_id: ",".join(keys) for action_id, keys in chosen.items()}


def _parse_keys(keys: str) -> tuple[str, ...]:
    text = keys.strip()
    parts = [text] if text == "," else [part.strip() for part in text.split(",")]
    return tuple(_KEY_NAMES.get(part, part) for part in parts if part)


def _is_deliberate(key: str) -> bool:
    """Whether the key is hard to press by accident: a capital letter, a combination or a function key."""
    return (
        (len(key) == 1 and key.isupper()) or key.startswith(("ctrl+", "alt+")) or (key[:1] == "f" and key[1:].isdigit())
    )


def _reject_collisions(keys: Mapping[str, tuple[str, ...]], changed: set[str]) -> None:
    for action_id in sorted(changed):
        for other in ACTIONS:
            shared = set(keys[action_id]) & set(keys[other.id])
            if other.id != action_id and shared and _are_active_together(ACTIONS_BY_ID[action_id], other):
                raise _keymap_error(action_id, f"key {', '.join(sorted(shared))} is already used by {other.id}")


def _are_active_together(one: KeyAction, other: KeyAction) -> bool:
    """Whether both can be available at the same time."""
    everywhere = {Place.APP, Place.LIST}
    return bool(one.places & other.places or one.places & everywhere or other.places & everywhere)


def _keymap_error(action_id: str, fault: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"tui.keys: {action_id}: {fault}", code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
