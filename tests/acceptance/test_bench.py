"""The benchmarks run and print every figure; their values are not checked."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bench import baseline, sending, structure
from bench.call_trace import environment_to_trace, read_calls
from bench.server import BASELINE_TABLES

ROOT = Path(__file__).parents[2]
FORK_AND_CALL = """
import os
from horsies.model.text import first_line
if (pid := os.fork()) == 0:
    os.closerange(3, 100)  # as the fork server does
    first_line("text", limit=10)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(pid)
"""


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(database_url)
    await connection.execute(BASELINE_TABLES)
    yield connection
    await connection.close()


def test_small_run_prints_every_figure_and_its_ratio() -> None:
    command = [sys.executable, "-m", "bench.run", "--small", "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    output = json.loads(result.stdout)
    assert all(figure["value"]["median"] > 0 for figure in output["figures"].values())
    compared = {name: figure["against"] for name, figure in output["figures"].items() if figure["goal"]}
    assert compared.keys() == {"send one by one", "send by concurrent producers", "send_many"}
    assert output["machine"]["postgresql"]


def test_small_drain_behind_unknown_tasks_prints_its_ratio() -> None:
    command = [sys.executable, "-m", "bench.draining", "--small", "--unknown", "1000"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "drain behind 1,000 unknown tasks: " in result.stdout.splitlines()[-1]


def test_forked_process_that_closes_its_descriptors_is_traced(tmp_path: Path) -> None:
    environment = {**os.environ, **environment_to_trace(tmp_path)}
    command = [sys.executable, "-c", FORK_AND_CALL]
    pid = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    files = {call.file for call in read_calls(tmp_path) if call.pid == int(pid)}
    assert files == {"worker/horsies/model/text.py"}


async def test_baseline_and_horsies_store_the_same_number_of_rows(
    database_url: str, watcher: asyncpg.Connection[Any]
) -> None:
    async with baseline.insert_one_by_one(database_url) as insert, sending.send_one_by_one(database_url) as send:
        await insert(7)
        await send(7)
    assert await watcher.fetchval("SELECT count(*) FROM baseline_tasks") == 7
    assert await watcher.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'") == 7


async def test_send_and_bulk_send_take_one_transaction_each(
    database_url: str, watcher: asyncpg.Connection[Any]
) -> None:
    async with sending.send_one_by_one(database_url) as send, sending.send_in_bulk(database_url) as send_bulk:
        await send(5)
        await send_bulk(2500)
    transactions = "SELECT count(DISTINCT xmin::text) FROM horsies_tasks"
    assert await watcher.fetchval(transactions) == 5 + 1


def test_screens_benchmark_prints_every_figure() -> None:
    command = [sys.executable, "-m", "bench.screens", "--small"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for figure in ("queries of the list", "CPU", "pagedown", "sent to the terminal", "first paint"):
        assert figure in result.stdout


def test_workflow_benchmark_prints_nodes_and_cpu_time() -> None:
    command = [sys.executable, "-m", "bench.workflows", "--small"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for figure in ("CPU per node", "x plain tasks (median of 1)"):
        assert figure in result.stdout


def test_growth_benchmark_compares_large_tables_and_many_workers() -> None:
    command = [sys.executable, "-m", "bench.growth", "--small"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for figure in ("P7: with 1,000 finished and 1,000 delayed tasks", "P8: 8 workers drain"):
        assert figure in result.stdout


def test_peer_benchmark_names_every_peer_that_it_skips() -> None:
    command = [sys.executable, "-m", "bench.peers", "--python", sys.executable]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    for package in ("pgqueuer", "procrastinate", "celery"):
        assert f"{package} is not installed in the environment of {sys.executable}" in result.stdout


def test_recovery_benchmark_measures_a_pass_and_a_dry_run() -> None:
    command = [sys.executable, "-m", "bench.recovery", "--small"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for figure in ("P11: a pass over 100 running tasks", "P12: sweep --dry-run over 1,010 unfinished tasks, 10 stale"):
        assert figure in result.stdout


def test_structure_stays_within_its_limits() -> None:
    figures = structure.layout(structure.read_files(*structure.PRODUCT), tests=[])
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
