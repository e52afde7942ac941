"""Errors shown when the database or its tables do not exist."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from horsies.config import load_settings
from horsies.model.settings import TuiConfig
from horsies.store.database import Database as Store
from horsies.store.migrate import migrate
from horsies_tui.app import HorsiesApp
from horsies_tui.launch import DatabaseOpener, LaunchOptions
from tests.support.tui import eventually, screen_text


@asynccontextmanager
async def _screens(url: str) -> AsyncGenerator[Pilot[None]]:
    settings = load_settings(options={"broker.database_url": url})
    options = LaunchOptions(add_connection_options=lambda hint: f"{hint} --database-url there")
    app = HorsiesApp(DatabaseOpener(settings, options), TuiConfig(), database_name="test")
    async with app.run_test(size=(120, 36)) as pilot:
        yield pilot


async def test_missing_tables_name_migrate_command_until_retry(empty_database_url: str, empty_database: Store) -> None:
    async with _screens(empty_database_url) as pilot:
        await eventually(pilot, lambda: "the database has no horsies tables" in screen_text(pilot))
        assert "run: horsies db migrate --database-url there" in screen_text(pilot)
        await migrate(empty_database)
        await pilot.press("r")
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))


async def test_missing_database_shows_time_of_next_attempt(database_url: str) -> None:
    missing = database_url.replace("/test_", "/nope_").replace("horsies@", "horsies:hunter2@")
    async with _screens(missing) as pilot:
        await eventually(pilot, lambda: "RECONNECTING in 1s (2)" in screen_text(pilot))
        assert "Cannot connect: the database does not exist" in screen_text(pilot)
        assert "horsies:***@" in screen_text(pilot)
        assert "hunter2" not in screen_text(pilot)
