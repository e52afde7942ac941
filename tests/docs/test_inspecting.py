"""Runs the program and parses the filters of docs/inspecting.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from horsies_ops import TaskFilter, parse_filter
from tests.support.cli import examples_of
from tests.support.rows import insert_task


def test_documented_filters_parse() -> None:
    (lines,) = examples_of("docs/inspecting.md", language="filter")
    for line in lines.text.splitlines():
        assert isinstance(parse_filter(line), TaskFilter), line


def test_documented_program_prints_counts_and_failures(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(insert_task(database_url))
    asyncio.run(insert_task(database_url, status="FAILED", error_code="TimeoutError"))
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    (program,) = examples_of("docs/inspecting.md", language="python")
    program.run_in({})
    assert capsys.readouterr().out.splitlines() == [
        "1 pending, 0 of 0 slots busy, 0 stale",
        "mail.send TimeoutError",
    ]
