"""`horsies audit` as a process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.cli import Executable
from tests.support.rows import insert, insert_task

ONE_ACTION = {
    "id",
    "at",
    "actor",
    "host",
    "action",
    "reason",
    "filter",
    "db_role",
    "client_addr",
    "dry_run",
    "matched",
    "affected",
    "skipped",
    "via",
    "task_ids",
}

LONG = "the relay was down, " * 20


@pytest.fixture
def horsies(tmp_path: Path, database_url: str) -> Executable:
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


def test_audit_lists_actor_action_counts_and_reason(horsies: Executable, database_url: str) -> None:
    task_id = str(asyncio.run(insert_task(database_url, queue_name="mail")))
    horsies("task", "cancel", "--queue", "mail", "--yes", "--as", "ana", "--reason", LONG)
    (done,) = horsies("audit", "--json").document["actions"]
    assert set(done) == ONE_ACTION
    assert (done["actor"], done["via"], done["action"], done["reason"]) == ("ana", "cli", "cancel", LONG)
    assert (done["matched"], done["affected"], done["skipped"]) == (1, 1, 0)
    assert done["task_ids"] == [task_id]
    shown = horsies("audit").stdout
    assert LONG.strip() in shown
    assert '"mail"' in shown


def test_audit_shows_globs_as_they_were_written(horsies: Executable, database_url: str) -> None:
    asyncio.run(insert_task(database_url, task_name="shop.make_report"))
    horsies("task", "cancel", "--filter", "name:shop.make_* -name:*.send?ok", "--yes")
    (done,) = horsies("audit", "--json").document["actions"]
    assert [term["names"] for term in done["filter"]["filter"]] == [["shop.make_*"], ["*.send?ok"]]
    assert '"shop.make_*"' in horsies("audit").stdout


def test_audit_marks_dry_runs(horsies: Executable, database_url: str) -> None:
    task_id = str(asyncio.run(insert_task(database_url)))
    horsies("task", "fail", task_id, "--dry-run")
    shown = horsies("audit").stdout
    assert "fail, dry run" in shown
    assert task_id in shown


def test_audit_limits_and_filters_newest_last(horsies: Executable) -> None:
    for verb in ("pause", "resume", "pause"):
        horsies("queue", verb, "mail")
    actions = [each["action"] for each in horsies("audit", "--limit", "2", "--json").document["actions"]]
    assert actions == ["resume_queue", "pause_queue"]
    resumed = horsies("audit", "--action", "resume_queue", "--json").document["actions"]
    assert [each["action"] for each in resumed] == ["resume_queue"]


def test_unknown_audit_action_is_rejected(horsies: Executable) -> None:
    refused = horsies("audit", "--action", "retyr")
    assert (refused.code, "'retyr' is not among requeue, fail" in refused.stderr) == (2, True)
    assert "retry_workflow" in refused.stderr
    assert horsies("audit", "--action", "retry,cleanup").code == 0


def test_audit_without_actions_prints_a_message(horsies: Executable) -> None:
    assert "no actions" in horsies("audit").stderr
    assert horsies("audit", "--json").document == {"actions": []}


def test_audit_escapes_control_sequences(horsies: Executable, database_url: str) -> None:
    evil = "\x1b]52;c;evil\x07\u202e"
    row = {"host": "h", "action": evil, "reason": evil, "filter": {evil: evil}, "dry_run": False, "via": "cli"}
    counts = {"matched": 0, "affected": 0, "skipped": 0}
    asyncio.run(insert(database_url, "horsies_audit", actor=evil, **row, **counts))
    for output in ((), ("--json",)):
        answer = horsies("audit", *output)
        assert "evil" in answer.stdout, answer.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(answer.stdout)
