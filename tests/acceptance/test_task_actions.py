"""`horsies task requeue|fail|cancel|expire|retry` and `horsies queue pause|resume`."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.cli import Executable
from tests.support.rows import insert_task
from tests.support.store import fetch_rows

REPORT = {
    "action",
    "dry_run",
    "matched",
    "would_affect",
    "affected",
    "skipped_count",
    "skipped",
    "task_ids",
    "new_ids",
    "audit_id",
    "groups",
    "warnings",
}


@pytest.fixture
def horsies(tmp_path: Path, database_url: str) -> Executable:
    """The executable on an empty migrated database."""
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


def _stored(database_url: str, **columns: Any) -> str:
    return str(asyncio.run(insert_task(database_url, **columns)))


def _statuses(database_url: str) -> list[str]:
    return [status for (status,) in fetch_rows(database_url, "SELECT status FROM horsies_tasks ORDER BY id")]


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("fail", "PENDING", ["FAILED"]),
        ("cancel", "PENDING", ["CANCELLED"]),
        ("expire", "PENDING", ["EXPIRED"]),
        ("requeue", "CLAIMED", ["PENDING"]),
        ("retry", "FAILED", ["FAILED", "PENDING"]),
    ],
)
def test_action_by_id_needs_no_confirmation(
    horsies: Executable, database_url: str, action: str, before: str, after: list[str]
) -> None:
    task_id = _stored(database_url, status=before)
    answer = horsies("task", action, task_id, "--json", "--reason", "a flood", "--as", "ada")
    assert answer.code == 0, answer.stderr
    assert set(answer.document) == REPORT
    assert (answer.document["affected"], answer.document["task_ids"]) == (1, [task_id])
    assert _statuses(database_url) == after
    audit = fetch_rows(database_url, "SELECT id, actor, via, action, reason, affected FROM horsies_audit")
    assert audit == [(answer.document["audit_id"], "ada", "cli", action, "a flood", 1)]


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_workflow_tasks_are_refused_with_workflow_hint(horsies: Executable, database_url: str, action: str) -> None:
    task_id = _stored(database_url, status="PENDING", is_workflow_task=True, workflow_id=uuid4())
    answer = horsies("task", action, task_id)
    assert answer.code == 6
    assert f"horsies workflow {action} ID" in answer.stderr


def test_retry_prints_new_task_id(horsies: Executable, database_url: str) -> None:
    task_id = _stored(database_url, status="FAILED")
    answer = horsies("task", "retry", task_id)
    ((new_id,),) = fetch_rows(database_url, "SELECT id::text FROM horsies_tasks WHERE retry_of IS NOT NULL")
    assert f"{task_id} resent as {new_id}" in answer.stdout
    assert "sent again 1, skipped 0" in answer.stdout


def test_filter_without_terminal_or_yes_exits_2(horsies: Executable, database_url: str) -> None:
    _stored(database_url)
    answer = horsies("task", "cancel", "--status", "pending")
    assert answer.code == 2
    assert "would cancel 1 tasks" in answer.stderr
    assert "--yes" in answer.stderr
    assert _statuses(database_url) == ["PENDING"]


def test_filter_with_yes_changes_only_matches(horsies: Executable, database_url: str) -> None:
    _stored(database_url, queue_name="mail")
    _stored(database_url, queue_name="web")
    answer = horsies("task", "cancel", "--queue", "mail", "--yes")
    assert answer.code == 0
    assert "cancelled 1, skipped 0" in answer.stdout
    assert _statuses(database_url) == ["CANCELLED", "PENDING"]


def test_filter_option_accepts_tui_filter_language(horsies: Executable, database_url: str) -> None:
    _stored(database_url, queue_name="mail")
    _stored(database_url, queue_name="web")
    assert horsies("task", "cancel", "--filter", "queue:mail status:pending", "--yes").code == 0
    assert _statuses(database_url) == ["CANCELLED", "PENDING"]


@pytest.mark.parametrize(("answered", "code", "status"), [("y", 0, "CANCELLED"), ("n", 130, "PENDING")])
def test_confirmation_shows_filter_and_exact_count(
    horsies: Executable, database_url: str, answered: str, code: int, status: str
) -> None:
    _stored(database_url)
    done = _on_a_terminal(horsies, f"{answered}\n", "task", "cancel", "--status", "pending")
    assert "filter: status:pending" in done.stderr
    assert "cancel 1 of 1 tasks?" in done.stderr
    assert (done.returncode, _statuses(database_url)) == (code, [status])


def test_running_tasks_need_include_running(horsies: Executable, database_url: str) -> None:
    task_id = _stored(database_url, status="RUNNING", started_at=_now(database_url), claim_token=1)
    refused = horsies("task", "cancel", task_id, "--json")
    assert refused.code == 6
    assert refused.document["skipped"] == [{"id": task_id, "why": "TASK_IS_RUNNING"}]
    assert horsies("task", "cancel", task_id, "--include-running").code == 2
    assert horsies("task", "cancel", task_id, "--include-running", "--yes").code == 0
    assert _statuses(database_url) == ["CANCELLED"]


def test_unknown_task_id_exits_5(horsies: Executable) -> None:
    answer = horsies("task", "cancel", str(uuid4()))
    assert answer.code == 5
    assert "no task with these ids" in answer.stderr


def test_known_id_among_unknown_ids_is_changed(horsies: Executable, database_url: str) -> None:
    unknown = str(uuid4())
    answer = horsies("task", "cancel", _stored(database_url), unknown, "--json")
    assert (answer.code, answer.document["affected"]) == (0, 1)
    assert answer.document["skipped"] == [{"id": unknown, "why": "TASK_NOT_FOUND"}]


def test_cancelling_a_finished_task_exits_6(horsies: Executable, database_url: str) -> None:
    answer = horsies("task", "cancel", _stored(database_url, status="COMPLETED"))
    assert answer.code == 6
    assert "TASK_NOT_CANCELLABLE" in answer.stderr


def test_filter_without_matches_exits_0(horsies: Executable) -> None:
    assert horsies("task", "cancel", "--queue", "mail", "--yes").code == 0


def test_action_dry_run_changes_nothing(horsies: Executable, database_url: str) -> None:
    task_id = _stored(database_url)
    given = ("task", "cancel", "--status", "pending", "--dry-run")
    plain, telling = horsies(*given), horsies(*given, "--exit-code", "--json")
    assert (plain.code, telling.code) == (0, 3)
    assert "would cancel 1 of 1 tasks" in plain.stdout
    assert (telling.document["would_affect"], telling.document["affected"]) == (1, 0)
    assert _statuses(database_url) == ["PENDING"]
    assert fetch_rows(database_url, "SELECT dry_run, affected FROM horsies_audit") == [(True, 0), (True, 0)]
    assert horsies("task", "cancel", task_id).code == 0
    assert horsies(*given, "--exit-code").code == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), "no tasks selected"),
        (("--filter", ""), "--filter is empty"),
        (("--filter", "colour:red"), "at character 1"),
        (("--filter", "status:failed", "--queue", "mail"), "cannot be combined"),
        (("00000000-0000-7000-8000-000000000000", "--queue", "mail"), "one of them"),
        (("a91f",), "invalid id"),
        (("--limit", "0", "--queue", "mail"), "--limit"),
    ],
)
def test_missing_or_ambiguous_selection_exits_2(horsies: Executable, given: tuple[str, ...], expected: str) -> None:
    answer = horsies("task", "cancel", *given)
    assert answer.code == 2
    assert expected in answer.stderr


@pytest.mark.parametrize("action", ["requeue", "fail", "expire", "retry"])
def test_only_cancel_has_kill_option(horsies: Executable, action: str) -> None:
    assert horsies("task", action, "--queue", "mail", "--kill").code == 2


def test_actions_escape_control_sequences(horsies: Executable, database_url: str) -> None:
    _stored(database_url, status="FAILED", error_code="\x1b[31mRED\x07", task_name="\x1b]0;mine\x07")
    answer = horsies("task", "retry", "--status", "failed", "--dry-run")
    assert "\\x1b[31mRED" in answer.stdout
    assert "\x1b" not in answer.stdout + answer.stderr


def test_actor_defaults_to_environment(horsies: Executable, database_url: str) -> None:
    horsies("task", "cancel", _stored(database_url), HORSIES_ACTOR="grace")
    assert fetch_rows(database_url, "SELECT actor FROM horsies_audit") == [("grace",)]


def test_queue_pause_and_resume(horsies: Executable, database_url: str) -> None:
    _stored(database_url, queue_name="mail")
    paused = horsies("queue", "pause", "mail", "--reason", "smtp is down", "--as", "ada")
    assert (paused.code, paused.stdout) == (0, "mail paused\n")
    assert fetch_rows(database_url, "SELECT queue_name, paused_by, pause_reason FROM horsies_queues") == [
        ("mail", "ada", "smtp is down")
    ]
    assert horsies("queue", "pause", "mail").stdout == "mail was paused already\n"
    assert horsies("queue", "resume", "mail", "--json").document["changed"] is True
    assert fetch_rows(database_url, "SELECT FROM horsies_queues") == []


def test_pausing_unknown_queue_warns_and_resuming_removes_it(horsies: Executable) -> None:
    answer = horsies("queue", "pause", "mial")
    assert answer.code == 0
    assert "warning: no live worker serves mial" in answer.stderr
    assert "mial" in horsies("queue", "list").stdout
    assert horsies("queue", "resume", "mial").stdout == "mial resumed\n"
    assert "mial" not in horsies("queue", "list").stdout


def _now(database_url: str) -> Any:
    return fetch_rows(database_url, "SELECT now()")[0][0]


def _on_a_terminal(horsies: Executable, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a terminal as stdin and type this text."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        return subprocess.run(
            [sys.executable, "-m", "horsies_ops.cli", *arguments],
            cwd=horsies.cwd,
            env={**os.environ, **horsies.environment},
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_action_accepts_short_task_id(horsies: Executable, database_url: str) -> None:
    task_id = _stored(database_url)
    answer = horsies("task", "cancel", task_id[-8:], "--json")
    assert answer.document["task_ids"] == [task_id]


def test_ambiguous_short_id_changes_nothing(horsies: Executable, database_url: str) -> None:
    ids = [_stored(database_url, id=UUID(uuid4().hex[:24] + "0badcafe")) for _ in range(2)]
    answer = horsies("task", "cancel", "0badcafe")
    assert answer.code == 2
    assert all(each in answer.stderr for each in ids)
    assert _statuses(database_url) == ["PENDING", "PENDING"]


def test_unknown_short_id_is_not_found(horsies: Executable) -> None:
    assert horsies("task", "cancel", "0badcafe").code == 5
