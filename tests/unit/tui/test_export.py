from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from horsies_ops.reads.filters import TaskFilter
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.system import as_csv, as_json_lines
from horsies_tui.widgets.dialogs import PromptDialog
from tests.support.tui import eventually, running_app, screen_text, until_stable

MAIL_FILTER = TaskFilter(names=("mail.send",))


async def _save_as(pilot: Pilot[None], name: str) -> None:
    """Export the mail tasks under this file name instead of the default."""
    screen = pilot.app.screen
    assert isinstance(screen, TasksScreen)
    screen.apply_filter(MAIL_FILTER)
    await eventually(pilot, lambda: screen.window.filter == MAIL_FILTER)
    await pilot.press("ctrl+s")
    await eventually(pilot, lambda: isinstance(pilot.app.screen, PromptDialog))
    await pilot.press("ctrl+u", *name, "enter")
    await eventually(pilot, lambda: pilot.app.screen is screen)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_rows_are_exported_as_json_lines_with_masked_arguments() -> None:
    async with running_app() as pilot:
        await _save_as(pilot, "mails.jsonl")
        await eventually(pilot, Path("mails.jsonl").exists)
        await until_stable(pilot)
    rows = [json.loads(line) for line in Path("mails.jsonl").read_text().splitlines()]
    assert {row["name"] for row in rows} == {"mail.send"}
    assert rows[0]["arguments"] == {"to": "ada@example.org", "template": "welcome", "api_token": "••••••"}


async def test_csv_suffix_exports_csv() -> None:
    async with running_app() as pilot:
        await _save_as(pilot, "mails.csv")
        await eventually(pilot, Path("mails.csv").exists)
        await until_stable(pilot)
    text = Path("mails.csv").read_text()
    assert {row["name"] for row in csv.DictReader(io.StringIO(text))} == {"mail.send"}
    assert "s3cret" not in text


async def test_existing_file_is_not_overwritten() -> None:
    Path("mine.csv").write_text("precious")
    async with running_app() as pilot:
        await _save_as(pilot, "mine.csv")
        await eventually(pilot, lambda: any("File exists" in note.message for note in pilot.app._notifications))
    assert Path("mine.csv").read_text() == "precious"


@given(st.text())
def test_control_characters_are_not_exported(value: str) -> None:
    document = {"name": value, "nested": [value]}
    for text in (as_csv([document]), as_json_lines([document])):
        assert not [character for character in text if character < " " and character not in "\r\n"]
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "\u202e" not in text
    assert json.loads(as_json_lines([document])) == document


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-1"])
def test_csv_cells_are_not_spreadsheet_formulas(text: str) -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv([{"name": text}])))
    assert row["name"] == "'" + text


async def test_invalid_file_name_is_reported() -> None:
    async with running_app(notifies=True) as pilot:
        await _save_as(pilot, "~nobody-of-that-name/mails.csv")
        await eventually(pilot, lambda: "home directory" in screen_text(pilot))
