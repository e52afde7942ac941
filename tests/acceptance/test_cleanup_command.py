"""`horsies cleanup` as a process."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cli import Executable
from tests.support.rows import (
    HOUR,
    count_rows,
    insert_finished_run,
    insert_finished_task,
    insert_old_heartbeat,
    insert_task,
)

OLD = 2000 * HOUR


@pytest.fixture
def with_old_rows(database_url: str) -> str:
    """A database with two tasks, a run of two nodes and a heartbeat past their retention."""

    async def fill() -> None:
        for _ in range(2):
            await insert_finished_task(database_url, age=OLD)
        await insert_finished_run(database_url, age=OLD, tasks=("COMPLETED", "FAILED"))
        await insert_old_heartbeat(database_url, await insert_task(database_url), age=OLD)

    asyncio.run(fill())
    return database_url


def test_cleanup_dry_run_counts_and_deletes_nothing(horsies: Executable, with_old_rows: str) -> None:
    answer = horsies("cleanup", "--dry-run", "--json", "--database-url", with_old_rows)
    assert (answer.code, answer.stderr) == (0, "")
    found = {each["name"]: each for each in answer.document["categories"]}
    assert {name: each["rows"] for name, each in found.items() if each["rows"]} == {
        "heartbeats": 1,
        "workflows": 1,
        "tasks": 2,
    }
    assert found["workflows"]["tables"] == {
        "horsies_workflows": 1,
        "horsies_workflow_tasks": 2,
        "horsies_tasks": 2,
        "horsies_task_attempts": 2,
    }
    assert found["tasks"]["window_s"] == 720 * 3600
    assert found["tasks"]["oldest_at"].endswith("Z")
    assert answer.document["bytes"] > 0
    assert asyncio.run(count_rows(with_old_rows, "horsies_tasks")) == 5


def test_dry_run_exits_3_only_with_exit_code_option(horsies: Executable, with_old_rows: str) -> None:
    def code(*options: str) -> int:
        return horsies("cleanup", *options, "--database-url", with_old_rows).code

    assert code("--dry-run") == 0
    assert code("--dry-run", "--exit-code") == 3
    assert code("--exit-code") == 0
    assert code("--dry-run", "--exit-code") == 0


def test_cleanup_deletes_old_rows_and_prints_counts(horsies: Executable, with_old_rows: str) -> None:
    answer = horsies("cleanup", "--database-url", with_old_rows)
    assert answer.code == 0
    assert "deleted 4 rows, about" in answer.stdout
    assert asyncio.run(count_rows(with_old_rows, "horsies_tasks")) == 1


def test_empty_cleanup_prints_no_size(horsies: Executable, with_old_rows: str) -> None:
    horsies("cleanup", "--database-url", with_old_rows)
    lines = horsies("cleanup", "--dry-run", "--database-url", with_old_rows).stdout.splitlines()
    assert lines[-1] == "nothing to delete"
    assert [line.split()[:2] for line in lines if line.startswith("audit")] == [["audit", "365d"]]


def test_cleanup_follows_retention_settings(horsies: Executable, with_old_rows: str) -> None:
    answer = horsies(
        "cleanup", "--json", "--database-url", with_old_rows, HORSIES_RECOVERY__TERMINAL_RECORD_RETENTION_HOURS="none"
    )
    assert answer.document["rows"] == 1
    assert [each["window_s"] for each in answer.document["categories"] if each["name"] == "tasks"] == [None]


def test_cleanup_writes_one_audit_row_even_for_dry_run(horsies: Executable, with_old_rows: str) -> None:
    horsies("cleanup", "--dry-run", "--database-url", with_old_rows, HORSIES_ACTOR="ana")
    small = {"HORSIES_RETENTION__BATCH_SIZE": "50"}
    by_eve = ("--as", "eve", "--reason", "no space", "--database-url", with_old_rows)
    audit_id = horsies("cleanup", "--json", *by_eve, **small).document["audit_id"]
    columns = "actor, via, action, reason, dry_run, matched, affected"
    rows = asyncio.run(_fetch(with_old_rows, f"SELECT {columns}, id FROM horsies_audit ORDER BY id"))
    assert [tuple(row)[:7] for row in rows] == [
        ("ana", "cli", "cleanup", None, True, 4, 0),
        ("eve", "cli", "cleanup", "no space", False, 4, 4),
    ]
    assert rows[1]["id"] == audit_id


def test_concurrent_cleanup_is_busy(horsies: Executable, with_old_rows: str) -> None:
    async def hold_and_clean() -> tuple[int, str]:
        other = await asyncpg.connect(with_old_rows)
        async with other.transaction():
            await other.fetch("SELECT pg_advisory_xact_lock(horsies_lock_key('retention'))")
            answer = await asyncio.to_thread(horsies, "cleanup", "--json", "--database-url", with_old_rows)
        await other.close()
        return answer.code, json.loads(answer.stdout)["error"]["message"]

    assert asyncio.run(hold_and_clean()) == (4, "another process is cleaning up")


def test_progress_goes_to_the_terminal_not_stdout(with_old_rows: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "horsies_ops.cli", "cleanup", "--database-url", with_old_rows],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=60,
    )
    os.close(theirs)
    seen = os.read(ours, 100_000).decode(errors="replace")  # the terminal holds 4 KB, which may end in a character
    os.close(ours)
    assert "deleting" in seen
    assert done.stdout.splitlines()[-1].startswith("deleted 4 rows")
    assert "\x1b" not in done.stdout


async def _fetch(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()
