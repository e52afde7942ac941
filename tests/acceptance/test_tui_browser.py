"""`horsies tui --serve` in a real browser: typed keys arrive and screens are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Executable
from tests.support.rows import insert_task
from tests.support.tui import find_browser, open_browser

BROWSER = find_browser()
BLANK = 10_000
"""An empty screenshot has fewer bytes."""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on PATH")
async def test_browser_shows_screens_and_sends_keys(
    horsies: Executable, database_url: str, port: int, tmp_path: Path
) -> None:
    await insert_task(database_url)
    command = ("tui", "--serve", "--port", str(port))
    with horsies.start(*command, HORSIES_BROKER__DATABASE_URL=database_url) as server:
        server.wait_for_output("serving the TUI at")
        async with open_browser(str(BROWSER), tmp_path / "browser") as page:
            await page.open(f"http://127.0.0.1:{port}/")
            await page.wait_for_text("[1Dash]", "Needs attention", "RO")
            dashboard = await page.picture()
            await page.click(400, 400)
            await page.press("3")
            await page.wait_for_text("[3Tasks]", "1 row loaded")
            tasks = await page.picture()
        assert server.stop() == 0
    assert len(dashboard) > BLANK
    assert len(tasks) > BLANK
    assert dashboard != tasks
