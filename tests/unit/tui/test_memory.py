from __future__ import annotations

from pathlib import Path

import pytest

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import SavedState, StateFile, default_state_path
from horsies_tui.demo import DemoOpener
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.tui import eventually, frozen_system, running_app


def test_what_is_kept_is_there_the_next_time(tmp_path: Path) -> None:
    memory = StateFile(tmp_path / "state" / "tui.toml")
    memory.update(theme="nord", is_wide=True)
    memory.save_filter("db1/app", "status:failed")
    assert StateFile(tmp_path / "state" / "tui.toml").state == SavedState(
        theme="nord", is_wide=True, filters={"db1/app": "status:failed"}
    )


def test_each_database_has_its_own_filter_and_an_empty_one_is_forgotten(tmp_path: Path) -> None:
    memory = StateFile(tmp_path / "tui.toml")
    memory.save_filter("one", "status:failed")
    memory.save_filter("other", "queue:mail")
    memory.save_filter("one", "")
    assert StateFile(tmp_path / "tui.toml").state.filters == {"other": "queue:mail"}


@pytest.mark.parametrize("content", ["theme = ", "theme = 3\nwide = 'yes'\nfilters = 'x'", "\x00"])
def test_a_file_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "tui.toml").write_text(content)
    assert StateFile(tmp_path / "tui.toml").state == SavedState()


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    StateFile(tmp_path / "taken" / "tui.toml").update(theme="nord")


def test_it_lies_where_states_of_programs_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_path() == tmp_path / "horsies" / "tui.toml"


async def test_theme_columns_and_filter_are_as_they_were_left(tmp_path: Path) -> None:
    path = tmp_path / "tui.toml"
    async with running_app(memory=StateFile(path)) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        screen.apply_filter(TaskFilter(statuses=("FAILED",)))
        await pilot.press("t", "w")
        await eventually(pilot, lambda: StateFile(path).state.theme == "horsies-light")
    async with running_app(memory=StateFile(path)) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TasksScreen)
        assert screen.list.is_wide
        await eventually(pilot, lambda: list(screen.filter.statuses) == ["FAILED"])
        await eventually(pilot, lambda: {row.status for row in screen.list.rows} == {"FAILED"})


async def test_the_theme_of_the_settings_is_no_choice_to_remember(tmp_path: Path) -> None:
    memory = StateFile(tmp_path / "tui.toml")
    app = HorsiesApp(
        DemoOpener(frozen_system(20), pace_s=None), TuiConfig(theme="nord"), database_name="db1/app", state_file=memory
    )
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.theme == "nord"
        assert memory.state.theme is None
