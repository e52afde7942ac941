"""What the page about looking says is what happens: its program is run and its filters are read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horsies_ops import TaskFilter, parse_filter
from tests.support.cli import examples_of
from tests.support.rows import insert_task

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_filter_of_the_page_is_one() -> None:
    (lines,) = examples_of("docs/looking.md", language="filter")
    for line in lines.text.splitlines():
        assert isinstance(parse_filter(line), TaskFilter), line


def test_the_program_about_looking_tells_what_is_there(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(insert_task(database_url))
    asyncio.run(insert_task(database_url, status="FAILED", error_code="TimeoutError"))
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    (program,) = examples_of("docs/looking.md", language="python")
    program.run_in({})
    assert capsys.readouterr().out.splitlines() == [
        "1 wait, 0 of 0 slots are busy, 0 are silent",
        "mail.send TimeoutError",
    ]
