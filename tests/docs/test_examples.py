"""Runs the examples of the documentation."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from horsies import Horsies
from horsies.testing import drain
from tests.support.cli import Executable, examples_of, write_files_of


async def make_orders_table(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE orders (id uuid, total numeric)")
    await connection.close()


def play_the_worker(namespace: dict[str, object]) -> None:
    for app in [value for value in namespace.values() if isinstance(value, Horsies)]:
        drain(app, queues=app.get_valid_queue_names())


@pytest.fixture
def run_examples_of(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """Runs the examples of a page in order in one module, draining due tasks after each."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)

    def run(document: str) -> dict[str, Any]:
        module = types.ModuleType("examples")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for example in examples_of(document, language="python"):
            example.run_in(vars(module))
            play_the_worker(vars(module))
        for value in vars(module).values():
            if isinstance(value, Horsies):
                value.close()
        return vars(module)

    return run


async def ends_of_tasks(database_url: str) -> set[tuple[str, str, str | None]]:
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT DISTINCT task_name, status, error_code FROM horsies_tasks")
    await connection.close()
    return {(row["task_name"], row["status"], row["error_code"]) for row in rows}


def test_task_examples_run(database_url: str, run_examples_of: Callable[[str], dict[str, Any]]) -> None:
    asyncio.run(make_orders_table(database_url))
    run_examples_of("docs/tasks.md")
    assert asyncio.run(ends_of_tasks(database_url)) == {
        ("add", "COMPLETED", None),
        ("charge", "COMPLETED", None),
        ("double", "COMPLETED", None),
        ("charge", "FAILED", "LIMIT_EXCEEDED"),
        ("report", "COMPLETED", None),
        ("ship", "COMPLETED", None),
        ("sync", "PENDING", None),
    }


def test_workflow_examples_run(database_url: str, run_examples_of: Callable[[str], dict[str, Any]]) -> None:
    run_examples_of("docs/workflows.md")
    assert asyncio.run(ends_of_tasks(database_url)) == {("fetch", "COMPLETED", None), ("compare", "COMPLETED", None)}


def test_schedule_examples_run(database_url: str, run_examples_of: Callable[[str], dict[str, Any]]) -> None:
    examples = run_examples_of("docs/schedules.md")
    assert [schedule.name for schedule in examples["app"].get_schedules()] == ["reports.nightly", "export", "monthly"]


def test_maintenance_examples_run(run_examples_of: Callable[[str], dict[str, Any]]) -> None:
    assert asyncio.run(run_examples_of("docs/maintenance.md")["preview_cleanup"]()) == 0


def test_recovery_examples_run(run_examples_of: Callable[[str], dict[str, Any]]) -> None:
    examples = run_examples_of("docs/recovery.md")
    assert asyncio.run(examples["sweep"]()) == 0
    assert [each.function for each in examples["app"].recovery_hooks.recovery] == [examples["reschedule_reports"]]


def test_logging_examples_run(database_url: str, tmp_path: Path) -> None:
    write_files_of("docs/logging.md", tmp_path)
    horsies = Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})
    for task, order in (("charge", "7"), ("refund", "8")):
        assert horsies("task", "send", task, order, "--app", "shop:app").code == 0
    log = horsies("worker", "shop:app", "--burst", "--processes", "1").stderr
    logged = {_without_time_and_id(line) for line in log.splitlines()}
    lines = [line for example in examples_of("docs/logging.md", language="text") for line in example.text.splitlines()]
    shown = [line for line in lines if line.startswith("2026-")]  # not those of a terminal
    assert len(shown) == 3
    assert {_without_time_and_id(line) for line in shown} <= logged


def _without_time_and_id(line: str) -> str:
    return re.sub(r"  id=\w{8}", "", line[len("2026-01-31 12:00:00.123 ") :])


def test_testing_examples_pass(tmp_path: Path) -> None:
    names = write_files_of("docs/testing.md", tmp_path)
    assert {"shop.py", "conftest.py"} < set(names)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True)
    assert "5 passed" in done.stdout, done.stdout
