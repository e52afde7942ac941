"""The table of actions: key bindings, footer, help, palette, `[tui.keys]` and the read-only rule all come from it.

`view.sort` is implemented by the method `action_view_sort` of each screen, list or app in its scopes. Actions that
share a method pass it an argument: `op.fail` calls `action_op("fail")`, `go.queues` calls `action_go("queues")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from textual.binding import Binding
from textual.keys import format_key

from horsies.errors import ConfigurationError, ErrorCode

KEY_RULES: Final = (
    "Outside a preview, a lower-case key never changes the database.",
    "A capital letter changes it, and always opens a preview first (G, N and Y only move and copy).",
    "Esc goes back one step and undoes the newest thing first; it never quits.",
)


class ScreenId(StrEnum):
    """The main screens, in the order of their tabs and number keys."""

    DASHBOARD = "dash"
    QUEUES = "queues"
    TASKS = "tasks"
    STALE = "stale"
    WORKERS = "workers"
    WORKFLOWS = "flows"
    SCHEDULES = "sched"
    EVENTS = "events"
    MAINTENANCE = "maint"


class SharedScope(StrEnum):
    """Scopes of keys that do not belong to one main screen."""

    APP = "everywhere"
    LIST = "lists"
    TASK = "task"
    """The detail of a task."""


KeyScope: TypeAlias = ScreenId | SharedScope
"""Where a key works."""


def scope_title(scope: KeyScope) -> str:
    """The title of a screen in the tabs and of a section of the help."""
    return scope.capitalize()


class KeyAction:
    """An action and its keys, which are the same in all of its scopes."""

    def __init__(
        self,
        id: str,  # noqa: A002  # as in Textual
        keys: str,
        label: str,
        help: str,  # noqa: A002
        *scopes: KeyScope,
        labels: Mapping[KeyScope, str] | None = None,
        helps: Mapping[KeyScope, str] | None = None,
        call: str | None = None,
    ) -> None:
        """`keys` are separated by spaces; `labels` and `helps` replace `label` and `help` where those say too much."""
        group, _, name = id.partition(".")
        self.id = id
        self.keys = tuple(keys.split())
        self.label = label
        """One or two words for the footer; empty if only the help lists the action."""
        self.help = help
        """What it does in all scopes together; `help_in` is that of one."""
        self.scopes = scopes
        self.call = call or (f"{group}('{name}')" if group in ("go", "op", "mark") else f"{group}_{name}")
        """The action in Textual's syntax: the name of a method without `action_`, and its arguments."""
        self._labels = labels or {}
        self._helps = helps or {}

    @property
    def mutates(self) -> bool:
        """Whether it can change the database. Disabled in read-only mode and while disconnected."""
        return self.id.startswith("op.")

    @property
    def opens_text_input(self) -> bool:
        """Whether it focuses a text input. Runs with priority, so that the next key already goes to the input."""
        return self.id in ("filter.edit", "app.palette", "view.limits")

    @property
    def method(self) -> str:
        """Name of the method, without `action_`."""
        return self.call.partition("(")[0]

    def help_in(self, scope: KeyScope) -> str:
        return self._helps.get(scope, self.help)

    def binding(self, scope: KeyScope) -> Binding:
        return Binding(
            ",".join(self.keys),
            self.call,
            self._labels.get(scope, self.label),
            show=bool(self.label),
            tooltip=self.help_in(scope),
            id=self.id,
            priority=self.opens_text_input,
        )


APP, LIST, TASK = SharedScope
DASHBOARD, QUEUES, TASKS, STALE, WORKERS, WORKFLOWS, SCHEDULES, EVENTS, MAINTENANCE = ScreenId
_TASK_SCREENS = (TASKS, TASK, STALE)
_FILTERED = (QUEUES, TASKS, TASK, WORKERS, WORKFLOWS, SCHEDULES, EVENTS)
_COPYABLE = (QUEUES, TASKS, TASK, STALE, WORKERS, WORKFLOWS, SCHEDULES)

# In footer order: where there is no room, the footer drops the last ones first.
ACTIONS: Final = (
    KeyAction("mark.toggle", "space", "mark", "mark the row and move down", TASKS, STALE),
    KeyAction("mark.page", "a", "page", "mark all loaded rows", TASKS, STALE),
    KeyAction("mark.match", "ctrl+a", "match", "mark everything that matches the filter", TASKS),
    KeyAction("op.sweep", "S", "sweep", "run the sweep now: recover stale tasks", DASHBOARD, STALE, MAINTENANCE),
    KeyAction(
        "op.requeue",
        "R",
        "requeue",
        "requeue or retry tasks; recover the tasks of a worker; retry the failed nodes of a run; run a schedule now",
        TASKS,
        TASK,
        STALE,
        WORKERS,
        WORKFLOWS,
        SCHEDULES,
        DASHBOARD,
        labels={WORKERS: "recover", WORKFLOWS: "retry", SCHEDULES: "run now", DASHBOARD: "recover"},
        helps={
            **dict.fromkeys(_TASK_SCREENS, "requeue tasks, or retry finished ones"),
            WORKERS: "recover the tasks of this worker",
            WORKFLOWS: "retry the failed nodes of this run",
            SCHEDULES: "run this schedule now",
            DASHBOARD: "recover the tasks of this worker, or retry this run",
        },
    ),
    KeyAction("op.fail", "F", "fail", "mark tasks as failed", *_TASK_SCREENS),
    KeyAction("op.expire", "X", "expire", "expire tasks that have not started", TASKS, TASK),
    KeyAction(
        "op.cancel",
        "C",
        "cancel",
        "cancel tasks or a workflow run",
        TASKS,
        TASK,
        WORKFLOWS,
        helps={TASKS: "cancel tasks", TASK: "cancel this task", WORKFLOWS: "cancel this run and all runs below it"},
    ),
    KeyAction(
        "op.pause",
        "P",
        "pause/resume",
        "pause or resume a queue, workflow run or schedule",
        QUEUES,
        WORKFLOWS,
        SCHEDULES,
        DASHBOARD,
        labels={DASHBOARD: "resume"},
        helps={
            QUEUES: "pause or resume this queue",
            WORKFLOWS: "pause or resume this run",
            SCHEDULES: "pause or resume this schedule",
            DASHBOARD: "resume this queue or run",
        },
    ),
    KeyAction("op.backfill", "B", "backfill", "backfill the slots of a schedule that did not fire", SCHEDULES),
    KeyAction("op.cleanup", "D", "cleanup", "run the cleanup now: delete rows past their retention", MAINTENANCE),
    KeyAction(
        "plan.dry",
        "d",
        "dry-run",
        "dry run: preview a sweep, or R on these rows, without changes; the next ten slots of a schedule",
        *_TASK_SCREENS,
        MAINTENANCE,
        SCHEDULES,
        labels={SCHEDULES: "next ten"},
        helps={
            TASKS: "dry run: preview R on these rows",
            TASK: "dry run: preview R on this task",
            STALE: "dry run: preview a sweep or, with marks, R on these rows",
            MAINTENANCE: "dry run: preview this operation",
            SCHEDULES: "show its next ten slots",
        },
    ),
    KeyAction("nav.open", "enter", "open", "open the row under the cursor", LIST),
    KeyAction(
        "filter.edit",
        "slash",
        "filter",
        "edit the filter; in a task: search",
        *_FILTERED,
        labels={TASK: "search"},
        helps={**dict.fromkeys(_FILTERED, "edit the filter"), TASK: "search"},
    ),
    KeyAction("filter.facets", "f", "facets", "choose states, queues, names and errors, with counts", TASKS, EVENTS),
    KeyAction("view.sort", "s", "sort", "choose the sort column; again: reverse the order", QUEUES, TASKS, WORKERS),
    KeyAction("view.fold", "z", "fold", "collapse or expand all", WORKFLOWS, EVENTS),
    KeyAction("view.layers", "b", "layers", "switch between tree and layers", WORKFLOWS),
    KeyAction(
        "view.exclude",
        "x",
        "hide healthy",
        "hide lost workers, completed branches, disabled and retired schedules",
        WORKERS,
        WORKFLOWS,
        SCHEDULES,
        labels={WORKERS: "hide lost", SCHEDULES: "hide disabled"},
        helps={
            WORKERS: "hide silent, stale and lost workers",
            WORKFLOWS: "show only failed and skipped nodes",
            SCHEDULES: "hide disabled and retired schedules",
        },
    ),
    KeyAction("view.limits", "comma", "limits", "set the thresholds for this session", STALE),
    KeyAction("view.pager", "vertical_line", "pager", "open arguments and result in $PAGER", TASK),
    KeyAction(
        "nav.events",
        "l",
        "log",
        "events of this task; the operator log",
        TASK,
        MAINTENANCE,
        labels={TASK: "events"},
        helps={TASK: "switch between timeline and events", MAINTENANCE: "open the operator log"},
    ),
    KeyAction("nav.owner", "o", "owner", "go to its worker, workflow or queue", TASKS, TASK),
    KeyAction("copy.id", "y", "copy", "copy the ids of the marked rows, or of this one", *_COPYABLE),
    KeyAction("app.palette", "colon ctrl+p", "command", "command palette", APP),
    KeyAction("app.help", "question_mark f1", "help", "show the keys of this screen", APP),
    KeyAction("app.quit", "q", "quit", "quit; in a detail: go back", APP),
    KeyAction("filter.clear", "backslash", "", "clear the filter", *_FILTERED),
    KeyAction("find.next", "n", "", "go to the next search match", TASK),
    KeyAction("find.prev", "N", "", "go to the previous search match", TASK),
    KeyAction("mark.range", "v", "", "start or end a range of marks", TASKS, STALE),
    KeyAction("mark.none", "u", "", "clear all marks", TASKS, STALE),
    KeyAction("view.preview", "i", "", "show or hide the preview", TASKS),
    KeyAction("view.wide", "w", "", "show all columns and scroll sideways, or only those that fit", TASKS),
    KeyAction("view.max", "m", "", "maximise the list, or restore", TASKS),
    KeyAction("copy.json", "Y", "", "copy the rows as JSON", TASKS, TASK),
    KeyAction("copy.cli", "c", "", "copy the equivalent horsies command", TASKS, TASK, STALE, WORKFLOWS, MAINTENANCE),
    KeyAction("export.rows", "ctrl+s", "", "export the rows as JSON lines or CSV", TASKS, EVENTS, MAINTENANCE),
    KeyAction("live.pause", "p", "", "freeze or resume updates", APP),
    KeyAction("live.refresh", "r ctrl+r", "", "refresh now", APP),
    KeyAction("live.slower", "less_than_sign", "", "refresh less often", APP),
    KeyAction("live.faster", "greater_than_sign", "", "refresh more often", APP),
    KeyAction("view.theme", "t", "", "switch to the next theme", APP),
    KeyAction("app.write", "exclamation_mark", "", "enable or disable actions for this session (read-only)", APP),
    KeyAction("app.back", "escape", "", "go back one step", APP),
    KeyAction("nav.last", "minus", "", "return to the previous screen", APP),
    KeyAction("nav.prev", "left_square_bracket", "", "previous item; on charts: a shorter time range", TASK, WORKERS),
    KeyAction("nav.next", "right_square_bracket", "", "next item; on charts: a longer time range", TASK, WORKERS),
    KeyAction("nav.left", "h left", "", "collapse the branch or go to its parent; scroll left", TASKS, WORKFLOWS),
    KeyAction("nav.right", "l right", "", "expand the branch; scroll columns right", TASKS, WORKFLOWS),
    KeyAction("nav.down", "j down", "", "move down", LIST, call="move_rows(1)"),
    KeyAction("nav.up", "k up", "", "move up", LIST, call="move_rows(-1)"),
    KeyAction("nav.top", "g home", "", "go to the first row", LIST, call="move_to_end('top')"),
    KeyAction("nav.bottom", "G end", "", "go to the last row", LIST, call="move_to_end('bottom')"),
    KeyAction("nav.page_down", "ctrl+f pagedown", "", "page down", LIST, call="move_pages(1)"),
    KeyAction("nav.page_up", "ctrl+b pageup", "", "page up", LIST, call="move_pages(-1)"),
    KeyAction("nav.half_down", "ctrl+d", "", "half a page down", LIST, call="move_pages(0.5)"),
    KeyAction("nav.half_up", "ctrl+u", "", "half a page up", LIST, call="move_pages(-0.5)"),
    *(
        KeyAction(f"go.{screen_id}", str(number), "", f"go to {scope_title(screen_id)}", APP)
        for number, screen_id in enumerate(ScreenId, 1)
    ),
)

ACTIONS_BY_ID: Final = {action.id: action for action in ACTIONS}
ACTIONS_BY_METHOD: Final = {action.method: action for action in ACTIONS}
"""Of the actions that share a method, the last one."""


def actions_in(scope: KeyScope) -> tuple[KeyAction, ...]:
    """The actions of this scope alone, in footer order."""
    return tuple(action for action in ACTIONS if scope in action.scopes)


def bindings(scope: KeyScope) -> list[Binding]:
    """The `BINDINGS` of a screen or widget."""
    return [action.binding(scope) for action in actions_in(scope)]


# Key names and the user's keymap (`[tui.keys]`)

_KEY_ALIASES: Final = {",": "comma", "esc": "escape", "pgdn": "pagedown", "pgup": "pageup"}
"""Names that users may write, besides Textual's and single characters."""


def key_label(key: str) -> str:
    """A key as shown in the footer and the help: `^a`, `space`, `?`."""
    labels = {"enter": "Enter", "escape": "Esc"}
    return "^" + key.removeprefix("ctrl+") if key.startswith("ctrl+") else labels.get(key) or format_key(key)


def first_key(action_id: str, overrides: Mapping[str, str]) -> str:
    """The label of the first key of an action in the user's keymap; empty if the action is disabled."""
    keys = _parse_keys(overrides[action_id]) if action_id in overrides else ACTIONS_BY_ID[action_id].keys
    return key_label(keys[0]) if keys else ""


def build_keymap(overrides: Mapping[str, str]) -> dict[str, str]:
    """Textual's keymap for the user's keys by action id; an empty text disables an action.

    Raises ConfigurationError for an unknown action, a key that another action in the same scope uses (Textual would
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
    named = [(_KEY_ALIASES.get(part, part), "", "") for part in parts if part]
    # Textual replaces single characters by their names.
    return tuple(binding.key for binding in Binding.make_bindings(named))


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
    is_everywhere = bool({APP, LIST} & {*one.scopes, *other.scopes})
    return is_everywhere or bool(set(one.scopes) & set(other.scopes))


def _keymap_error(action_id: str, fault: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"tui.keys: {action_id}: {fault}", code=ErrorCode.CLI_INVALID_ARGS, hint=hint)
