from __future__ import annotations

from uuid import uuid4

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from horsies.model.settings import TuiConfig
from horsies_tui.screens.tasks.detail import TaskDetailScreen
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.screens.workflows import WorkflowsScreen
from horsies_tui.widgets.dialogs import PromptDialog
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app, screen_text


async def _choose(pilot: Pilot[None], text: str, entry: str) -> None:
    """Type into the palette, wait for the entry and choose it."""
    await pilot.press("colon", *text)
    await eventually(pilot, lambda: entry in screen_text(pilot))
    await pilot.press("enter")


async def test_short_id_opens_task() -> None:
    system = frozen_system()
    task_id = system.task_ids[10]
    async with running_app(FakeOpener(system)) as pilot:
        await _choose(pilot, str(task_id)[-8:], f"Go to {str(task_id)[-8:]}")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))
        assert str(task_id) in screen_text(pilot)


async def test_run_id_opens_run() -> None:
    system = frozen_system()
    run_id = next(iter(system.runs))
    async with running_app(FakeOpener(system)) as pilot:
        await _choose(pilot, str(run_id), f"Go to {run_id}")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkflowsScreen))


async def test_unknown_id_is_reported() -> None:
    unknown_id = str(uuid4())
    async with running_app(size=(120, 30), notifies=True) as pilot:
        await _choose(pilot, unknown_id, f"Go to {unknown_id}")
        await eventually(pilot, lambda: "no task or workflow run with id" in screen_text(pilot))


async def test_go_to_id_prompts_for_id() -> None:
    system = frozen_system()
    task_id = system.task_ids[3]
    async with running_app(FakeOpener(system)) as pilot:
        await _choose(pilot, "go to id", "Go to id")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, PromptDialog))
        await pilot.press(*str(task_id)[-8:], "enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TaskDetailScreen))


async def test_named_filter_is_command() -> None:
    async with running_app(settings=TuiConfig(filters={"smtp": "queue:mail err:SMTP*"})) as pilot:
        await _choose(pilot, "smtp", "Filter smtp")
        screen = pilot.app.screen_stack[0]
        assert isinstance(screen, TasksScreen)
        await eventually(pilot, lambda: list(screen.filter.error_codes) == ["SMTP*"])


@pytest.mark.parametrize("opening_key", ["colon", "ctrl+p"])
async def test_keys_typed_while_palette_opens_go_into_palette(opening_key: str) -> None:
    async with running_app() as pilot:
        for key in (opening_key, *"theme"):
            pilot.app.simulate_key(key)
        await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
        field = pilot.app.focused
        assert isinstance(field, Input)
        await eventually(pilot, lambda: field.value == "theme")


async def test_colon_in_filter_input_stays_text() -> None:
    async with running_app() as pilot:
        await pilot.press("slash", *"queue", "colon", *"mail")
        field = pilot.app.focused
        assert isinstance(field, Input)
        assert field.value == "queue:mail"


async def test_palette_opens_on_places_to_go_and_ends_with_changes() -> None:
    async with running_app() as pilot:
        titles = [command.title for command in pilot.app.get_system_commands(pilot.app.screen)]
        assert titles[:2] == ["Go to Dash", "Go to Queues"]
        assert titles[-1] == "Cancel tasks"
        await pilot.press("colon")
        await eventually(pilot, lambda: "Go to id" in screen_text(pilot) and "Go to Dash" in screen_text(pilot))
