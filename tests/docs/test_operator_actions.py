"""Runs the program of docs/operator-actions.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cli import examples_of
from tests.support.rows import insert_task
from tests.support.store import fetch_rows


def test_documented_program_retries_matching_tasks(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(insert_task(database_url, status="FAILED", error_code="TimeoutError"))
    asyncio.run(insert_task(database_url, status="FAILED", error_code="KeyError"))
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    (program,) = examples_of("docs/operator-actions.md", language="python")
    program.run_in({})
    assert "1 FAILED TimeoutError sent again" in capsys.readouterr().out
    assert fetch_rows(database_url, "SELECT actor, action, affected FROM horsies_audit") == [
        ("night shift", "retry", 1)
    ]
