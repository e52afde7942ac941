"""What the documents for authors say is what happens: their examples are run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import asyncpg

from horsies import Horsies
from horsies.testing import drain
from tests.support.documents import examples_of, write_files_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def make_orders_table(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE orders (id uuid, total numeric)")
    await connection.close()


def play_the_worker(namespace: dict[str, object]) -> None:
    for app in [value for value in namespace.values() if isinstance(value, Horsies)]:
        drain(app, queues=app.get_valid_queue_names())


def run_examples_of(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them one after the other, in one module, and after each what is due."""
    module = types.ModuleType("examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for example in examples_of(document, language="python"):
        example.run_in(vars(module))
        play_the_worker(vars(module))
    for value in vars(module).values():
        if isinstance(value, Horsies):
            value.close()


def test_the_examples_about_tasks_run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(make_orders_table(database_url))
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    run_examples_of("docs/tasks.md", monkeypatch)


def test_the_examples_about_workflows_run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    run_examples_of("docs/workflows.md", monkeypatch)


def test_the_examples_about_maintenance_run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    run_examples_of("docs/maintenance.md", monkeypatch)


def test_the_examples_about_recovery_run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    run_examples_of("docs/recovery.md", monkeypatch)


def test_the_examples_about_testing_pass(tmp_path: Path) -> None:
    names = write_files_of("docs/testing.md", tmp_path)
    assert {"shop.py", "conftest.py"} < set(names)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True)
    assert "5 passed" in done.stdout, done.stdout
