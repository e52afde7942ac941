"""The benchmarks run on a durable server and print what they claim to measure. Speed is never asserted."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bench import floor, sending, structure
from bench.server import FLOOR_TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(FLOOR_TABLES)
    yield connection
    await connection.close()


def test_send_bench_prints_every_figure_and_ratio() -> None:
    command = [sys.executable, "-m", "bench.run", "--small", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert all(figure["value"]["median"] > 0 for figure in said["figures"].values())
    held = {name: figure["against"] for name, figure in said["figures"].items() if figure["reach"]}
    assert held.keys() == {"send one by one", "send by producers at once", "send_many"}
    assert said["machine"]["postgresql"]


async def test_floor_and_library_store_equal_row_counts(database_url: str, watcher: asyncpg.Connection[Any]) -> None:
    async with floor.inserting_one_by_one(database_url) as insert, sending.sending_one_by_one(database_url) as send:
        await insert(7)
        await send(7)
    assert await watcher.fetchval("SELECT count(*) FROM floor_tasks") == 7
    assert await watcher.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'") == 7


async def test_send_and_bulk_send_use_one_transaction(database_url: str, watcher: asyncpg.Connection[Any]) -> None:
    async with sending.sending_one_by_one(database_url) as send, sending.sending_in_bulk(database_url) as send_bulk:
        await send(5)
        await send_bulk(2500)
    transactions = "SELECT count(DISTINCT xmin::text) FROM horsies_tasks"
    assert await watcher.fetchval(transactions) == 5 + 1


def test_screen_bench_measures_storm_keys_and_idle() -> None:
    ended = subprocess.run([sys.executable, "-m", "bench.screens", "--small"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for what in ("questions for the list", "share of a core", "pagedown", "sent to the terminal", "first paint"):
        assert what in ended.stdout


def test_recovery_bench_measures_sweep_and_dry_run() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.recovery", "--small"], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    for what in ("P11: a pass over 100 running tasks", "P12: sweep --dry-run over 1,010 live tasks, 10 stale"):
        assert what in ended.stdout


def test_structure_stays_within_its_limits() -> None:
    figures = structure.layout(structure.read_files(*structure.PRODUCT), structure.read_files("tests"))
    assert figures["modules"] <= 270
    assert figures["files over 720 lines"] == []
    assert figures["functions"] > figures["private functions with one call site"] > 0


def test_forwarding_functions_pass_on_exactly_their_parameters() -> None:
    forwarding = "async def f(self, a, *b, c=1, **d):\n    return await self.other(a, *b, c=c, **d)"
    changing = "def f(a, *, c):\n    return other(a, c=not c)"
    assert [structure.is_forwarding(function) for function in _functions(forwarding, changing)] == [True, False]


def test_private_functions_with_one_call_site_are_found_by_scope() -> None:
    first = "def run():\n    _once()\n    _twice()\n    _twice()\ndef _once(): ...\ndef _twice(): ..."
    second = "class Other:\n    def _once(self): ...\n    def a(self): self._once()\n    def b(self): self._once()"
    files = [structure.SourceFile(Path(f"{n}.py"), text) for n, text in enumerate((first, second))]
    assert list(structure.one_call_helpers(files)) == [("0.py:5 _once", 1)]


def _functions(*sources: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [structure.SourceFile(Path("f.py"), source).functions[0][0] for source in sources]
