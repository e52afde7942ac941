"""`horsies workflow pause|resume|cancel|retry`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support.cli import Executable
from tests.support.rows import insert, insert_run
from tests.support.store import fetch_rows


@pytest.fixture
def horsies(tmp_path: Path, database_url: str) -> Executable:
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


@pytest.fixture
def run(database_url: str) -> UUID:
    """A run whose nodes are not ready yet."""
    run, ((now,),) = uuid4(), fetch_rows(database_url, "SELECT now()")
    columns = {"id": run, "name": "w", "status": "RUNNING", "on_error": "fail", "root_workflow_id": run, "sent_at": now}
    asyncio.run(insert(database_url, "horsies_workflows", **columns))
    node = {"workflow_id": run, "task_index": 0, "node_id": "only", "task_name": "mail.send", "queue_name": "default"}
    asyncio.run(insert(database_url, "horsies_workflow_tasks", id=uuid4(), priority=100, status="READY", **node))
    return run


def test_run_pause_resume_and_cancel(horsies: Executable, database_url: str, run: UUID) -> None:
    answers = [horsies("workflow", verb, str(run), "--as", "ada") for verb in ("pause", "resume", "cancel")]
    assert [(answer.code, answer.stdout) for answer in answers] == [
        (0, "paused\n"),
        (0, "resumed\n"),
        (0, "cancelled\n"),
    ]
    assert fetch_rows(database_url, "SELECT status FROM horsies_workflows") == [("CANCELLED",)]
    audit = fetch_rows(database_url, "SELECT actor, via, action, affected FROM horsies_audit ORDER BY id")
    assert audit == [("ada", "cli", f"{verb}_workflow", 1) for verb in ("pause", "resume", "cancel")]


def test_wrong_state_exits_6_and_unknown_run_exits_5(horsies: Executable, run: UUID) -> None:
    refused = horsies("workflow", "retry", str(run), "--json")
    assert (refused.code, refused.document["why"]) == (6, "WORKFLOW_NOT_TERMINAL")
    assert f"horsies workflow cancel {run} first" in refused.document["hint"]
    horsies("workflow", "pause", str(run))
    assert f"hint: horsies workflow resume {run} continues it" in horsies("workflow", "retry", str(run)).stderr
    assert horsies("workflow", "pause", str(uuid4())).code == 5


def test_kill_needs_confirmation(horsies: Executable, database_url: str, run: UUID) -> None:
    assert horsies("workflow", "cancel", str(run), "--kill").code == 2
    assert fetch_rows(database_url, "SELECT status FROM horsies_workflows") == [("RUNNING",)]
    assert horsies("workflow", "cancel", str(run), "--kill", "--yes").code == 0


def test_workflow_commands_accept_unambiguous_short_ids(horsies: Executable, database_url: str, run: UUID) -> None:
    short = str(run)[-8:]
    assert f"{run}" in horsies("workflow", "show", short).stdout
    assert horsies("workflow", "pause", short).stdout == "paused\n"
    alike = asyncio.run(insert_run(database_url, id=UUID(f"01890a5d-ac96-7000-8000-0000{short}")))
    refused = horsies("workflow", "cancel", short)
    assert (refused.code, f"2 runs have the short id {short}" in refused.stderr, str(alike) in refused.stderr) == (
        2,
        True,
        True,
    )
    assert horsies("workflow", "cancel", "0badcafe").code == 5
    assert "the last 8 digits are enough" in horsies("workflow", "show", short[:6]).stderr
