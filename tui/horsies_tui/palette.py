"""What the palette offers: every action by its name, named filters, themes, and whatever has an id by that id."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from textual.app import SystemCommand
from textual.command import DiscoveryHit, Hit, Hits, Provider

from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.lookup import is_short_form
from horsies_tui.actions import Place, actions_at
from horsies_tui.format import clean
from horsies_tui.keymap import shown_key
from horsies_tui.messages import RunWanted, TasksWanted, TaskWanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.message import Message

    from horsies_tui.app import HorsiesApp
    from horsies_tui.source import Source

GO_TO_ID: Final = "Go to id …"
EXPLAINED: Final = "a task by its id or the last eight digits of it; a run of a workflow by its id"


def commands(app: HorsiesApp) -> Iterator[SystemCommand]:
    """Screens, the actions of this one, the filters that the settings name, and themes."""
    for action in (*actions_at(app.place), *actions_at(Place.APP)):
        owner = app if Place.APP in action.where else app.screen
        keys = " ".join(shown_key(key, app.desk.glyphs) for key in action.keys)
        title = action.help[:1].upper() + action.help[1:]
        yield SystemCommand(title, f"{keys}   {action.id}", partial(app.run_later, action.call, owner))
    for name, text in app.desk.settings.filters.items():
        yield SystemCommand(f"Filter {clean(name)}", clean(text), partial(app.filter_tasks, text))
    for name in app.available_themes:
        yield SystemCommand(f"Theme {name}", "other colours", partial(setattr, app, "theme", name))


class Ids(Provider):
    """An id that is typed or pasted into the palette leads to what has it."""

    @property
    def _app(self) -> HorsiesApp:
        return cast("HorsiesApp", self.app)

    async def discover(self) -> Hits:
        yield DiscoveryHit(GO_TO_ID, self._app.ask_for_id, help=EXPLAINED)

    async def search(self, query: str) -> Hits:
        typed = query.strip().lower()
        if is_id(typed):
            yield Hit(1.0, f"Go to {typed}", partial(self._app.go_to, typed), help=EXPLAINED)
        score = (matcher := self.matcher(query)).match(GO_TO_ID)
        if score > 0:
            yield Hit(score, matcher.highlight(GO_TO_ID), self._app.ask_for_id, help=EXPLAINED)


def is_id(text: str) -> bool:
    """Whether it can be an id, whole or short."""
    if is_short_form(text):
        return True
    try:
        return bool(UUID(text))
    except ValueError:
        return False


async def wanted(source: Source, identity: str) -> Message | None:
    """What whoever gave this id wants to see; None where nothing has it."""
    if is_short_form(identity):
        found = await source.tasks_ending(identity)
        if len(found) > 1:
            return TasksWanted(TaskFilter(ids=(identity,)))
        return TaskWanted(found[0].id) if found else None
    whole = UUID(identity)
    if await source.tasks_by_id([whole]):
        return TaskWanted(whole)
    return RunWanted(whole) if await source.workflow(whole) is not None else None
