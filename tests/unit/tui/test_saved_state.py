from __future__ import annotations

from pathlib import Path

import pytest

from horsies.model.settings import TuiConfig
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.app import HorsiesApp
from horsies_tui.data.context import SavedState, StateFile, default_state_path
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.fake_system import FakeOpener
from tests.support.tui import eventually, frozen_system, running_app


def test_saved_state_is_loaded_again(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path / "state" / "tui.toml")
    state_file.update(theme="nord", is_wide=True)
    state_file.save_filter("db1/app", "status:failed")
    assert StateFile(tmp_path / "state" / "tui.toml").state == SavedState(
        theme="nord", is_wide=True, filters={"db1/app": "status:failed"}
    )


def test_filters_are_saved_per_database_and_empty_ones_dropped(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path / "tui.toml")
    state_file.save_filter("one", "status:failed")
    state_file.save_filter("other", "queue:mail")
    state_file.save_filter("one", "")
    assert StateFile(tmp_path / "tui.toml").state.filters == {"other": "queue:mail"}


@pytest.mark.parametrize("content", ["theme = ", "theme = 3\nwide = 'yes'\nfilters = 'x'", "\x00"])
def test_invalid_state_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "tui.toml").write_text(content)
    assert StateFile(tmp_path / "tui.toml").state == SavedState()


def test_unwritable_state_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    StateFile(tmp_path / "taken" / "tui.toml").update(theme="nord")


def test_default_path_follows_xdg_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_path() == tmp_path / "horsies" / "tui.toml"


async def test_theme_columns_and_filter_are_restored(tmp_path: Path) -> None:
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


async def test_theme_from_settings_is_not_saved(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path / "tui.toml")
    app = HorsiesApp(
        FakeOpener(frozen_system(20)),
        TuiConfig(theme="nord"),
        database_name="db1/app",
        state_file=state_file,
    )
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.theme == "nord"
        assert state_file.state.theme is None
