"""`horsies task list` and `horsies task show`."""

from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.cli import Executable
from tests.support.rows import CRASH_RETRY, insert, insert_listening_worker, insert_owned_task, insert_task

LISTED = {
    "id",
    "name",
    "queue",
    "status",
    "priority",
    "attempt_count",
    "retry_count",
    "max_retries",
    "crash_count",
    "error_code",
    "sent_at",
    "enqueued_at",
    "claimed_at",
    "started_at",
    "finished_at",
    "good_until",
    "next_retry_at",
    "worker_id",
    "worker_hostname",
    "worker_pid",
    "workflow_id",
    "flags",
    "age_s",
    "last_heartbeat_at",
    "silence_s",
}
SHOWN = LISTED | {
    "args",
    "kwargs",
    "result",
    "failed_reason",
    "claim_token",
    "claim_expires_at",
    "recovery_hold_until",
    "overlap_possible",
    "no_restart",
    "retry_policy",
    "timeout_ms",
    "idempotency_key",
    "retry_of",
    "last_beat",
    "wait_reasons",
    "verdict",
    "attempts",
    "events",
}
ATTEMPT = {
    "attempt",
    "claim_token",
    "outcome",
    "will_retry",
    "started_at",
    "finished_at",
    "error_code",
    "error_message",
    "failed_reason",
    "worker_id",
    "worker_hostname",
    "worker_pid",
}


@pytest.fixture
def tasks(tmp_path: Path, database_url: str) -> Executable:
    """The executable on an empty migrated database."""
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


def _stored(database_url: str, **columns: Any) -> str:
    return str(asyncio.run(insert_task(database_url, **columns)))


def test_task_list_has_documented_fields_newest_first(tasks: Executable, database_url: str) -> None:
    ids = [_stored(database_url) for _ in range(2)]
    document = tasks("task", "list", "--json").document
    assert [task["id"] for task in document["tasks"]] == ids[::-1]
    assert set(document) == {"tasks", "next", "searched_to", "total"}
    assert set(document["tasks"][0]) == LISTED
    assert (document["next"], document["searched_to"], document["total"]) == (None, None, None)


def test_task_table_fits_80_columns_with_short_ids(tasks: Executable, database_url: str) -> None:
    task_id = _stored(
        database_url, task_name="n" * 200, queue_name="q" * 90, status="COMPLETED", error_code="E" * 99, attempts=20
    )
    lines = tasks("task", "list", COLUMNS="80").stdout.splitlines()
    assert lines[0].split() == ["id", "status", "name", "queue", "age", "tries", "note"]
    assert lines[1].startswith(f"{task_id[-8:]}  COMPLETED  nnn")
    assert max(map(len, lines)) <= 80


def test_wide_terminal_shows_full_ids(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, task_name="n" * 200, queue_name="q" * 90, status="FAILED", error_code="E" * 99)
    lines = tasks("task", "list", COLUMNS="120").stdout.splitlines()
    assert lines[1].startswith(f"{task_id}  FAILED  nnn")
    assert max(map(len, lines)) <= 120


def test_full_option_cuts_nothing(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, task_name="n" * 200)
    assert (
        tasks("task", "list", "--full", COLUMNS="80")
        .stdout.splitlines()[1]
        .startswith(f"{task_id}  PENDING  {'n' * 200}")
    )


def test_delayed_task_shows_when_it_is_due(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, enqueued_at=datetime.now(UTC) + timedelta(minutes=5))
    for columns in ("80", "120"):
        assert re.search(r"due in (5m00s|4m5\ds)$", tasks("task", "list", COLUMNS=columns).stdout.splitlines()[1])
    assert re.search(r"PENDING  due in (5m00s|4m\d\ds)", tasks("task", "show", task_id).stdout)


def test_task_why_explains_a_waiting_task(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, queue_name="mail")
    answer = tasks("task", "why", task_id[-8:])
    assert (answer.code, answer.stdout) == (0, "no worker serves queue mail\n")
    document = tasks("task", "why", task_id, "--json").document
    reasons = [{"cause": "unserved", "text": "no worker serves queue mail"}]
    assert document == {"id": task_id, "status": "PENDING", "reasons": reasons}
    assert "no worker serves queue mail" in tasks("task", "show", task_id).stdout


def test_task_why_of_other_tasks_gives_their_status(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, status="COMPLETED")
    assert tasks("task", "why", task_id).stdout.startswith("it is not waiting: COMPLETED, finished ")
    failed_id = _stored(database_url, status="FAILED", error_code="WORKER_CRASHED")
    answer = tasks("task", "why", failed_id).stdout
    assert answer.startswith("it is not waiting: FAILED with WORKER_CRASHED, finished ")
    assert answer.endswith(f" ago; see horsies task show {failed_id[-8:]}\n")
    assert tasks("task", "why", "01890a5d-ac96-774b-bcce-b302099a8057").code == 5


def test_task_follow_prints_changes_until_the_task_has_finished(tasks: Executable, database_url: str) -> None:
    async def cancel(task_id: str) -> None:
        connection = await asyncpg.connect(database_url)
        set_columns = "status = 'CANCELLED', terminal_at = now(), error_code = 'TASK_CANCELLED'"
        await connection.execute(f"UPDATE horsies_tasks SET {set_columns} WHERE id = $1", UUID(task_id))
        await connection.close()

    task_id = _stored(database_url, queue_name="mail")
    with tasks.start("task", "follow", task_id[-8:]) as following:
        deadline = time.monotonic() + 30
        while "no worker serves queue mail" not in following.stdout:
            assert time.monotonic() < deadline, following.stderr
            time.sleep(0.05)
        asyncio.run(cancel(task_id))
        assert following.popen.wait(30) == 1
        assert [line.split()[2] for line in following.stdout.splitlines()] == ["PENDING", "CANCELLED"]


def test_task_follow_of_a_completed_task_exits_0(tasks: Executable, database_url: str) -> None:
    finished_at = datetime(2026, 3, 1, 11, 2, tzinfo=UTC)
    task_id = _stored(database_url, status="COMPLETED", result={"ok": 7}, terminal_at=finished_at)
    answer = tasks("task", "follow", task_id)
    assert answer.code == 0
    changed, result = answer.stdout.splitlines()
    assert changed.startswith("2026-03-01 11:02:00Z  COMPLETED")
    assert result == '{"ok":7}'
    (line,) = tasks("task", "follow", task_id, "--json").stdout.splitlines()
    assert json.loads(line)["status"] == "COMPLETED"


def test_next_page_continues_after_the_last_task(tasks: Executable, database_url: str) -> None:
    ids = [_stored(database_url) for _ in range(3)]
    first = tasks("task", "list", "--json", "--limit", "2").document
    second = tasks("task", "list", "--json", "--limit", "2", "--after", first["next"]).document
    assert [task["id"] for task in (*first["tasks"], *second["tasks"])] == ids[::-1]
    assert f"more: --after {first['next']}" in tasks("task", "list", "--limit", "2").stderr


def test_filter_options_combine_and_accept_lists(tasks: Executable, database_url: str) -> None:
    wanted = {"status": "FAILED", "queue_name": "mail", "error_code": "SMTP_DOWN", "flags": {"vip": True}}
    found = _stored(database_url, **wanted)
    for other in ({"status": "COMPLETED"}, {"queue_name": "web"}, {"error_code": "OTHER"}, {"flags": {"vip": False}}):
        _stored(database_url, **wanted | other)
    given = ("--status", "failed,expired", "--queue", "mail", "--error", "SMTP*", "--flag", "vip", "--newer-than", "1h")
    document = tasks("task", "list", "--json", *given).document
    assert [task["id"] for task in document["tasks"]] == [found]


def test_filter_option_with_count(tasks: Executable, database_url: str) -> None:
    found = _stored(database_url, status="FAILED", queue_name="mail")
    _stored(database_url, status="FAILED", queue_name="web")
    document = tasks("task", "list", "--json", "--count", "--filter", "status:failed -queue:web").document
    assert [task["id"] for task in document["tasks"]] == [found]
    assert (document["total"], document["total_is_exact"]) == (1, True)
    assert "2 match" in tasks("task", "list", "--count").stderr
    wrong = tasks("task", "list", "--filter", "queue:mail stauts:failed")
    assert (wrong.code, "character 12" in wrong.stderr, "did you mean status?" in wrong.stderr) == (2, True, True)


def test_empty_task_list_prints_message_on_stderr(tasks: Executable) -> None:
    answer = tasks("task", "list")
    assert (answer.code, answer.stdout, answer.stderr) == (0, "", "no tasks\n")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--status", "nope", "pending, claimed, running"),
        ("--older-than", "5x", "examples: 30s, 5m"),
        ("--worker", "w-7", "invalid id"),
        ("--limit", "0", "--limit"),
    ],
)
def test_invalid_option_exits_2_and_is_named(tasks: Executable, option: str, value: str, expected: str) -> None:
    answer = tasks("task", "list", option, value)
    assert answer.code == 2
    assert option in answer.stderr
    assert expected in answer.stderr


def test_running_task_shows_worker_child_and_what_comes(tasks: Executable, database_url: str) -> None:
    owner = asyncio.run(insert_listening_worker(database_url, silent_s=100))
    columns = {"worker_pid": 933, "worker_hostname": "host-1", "max_retries": 1, "task_options": CRASH_RETRY}
    task_id = str(asyncio.run(insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=100, **columns)))
    why = tasks("task", "why", task_id).stdout.splitlines()
    assert why[0].startswith(f"worker {str(owner)[-8:]} (")
    assert "in child process 933, attempt 1 of 2" in why[0]
    assert any("silent, last seen 1m4" in line for line in why)
    assert any(", if no heartbeat arrives: retry, attempt 2 of 2" in line for line in why)
    shown = tasks("task", "show", task_id).stdout
    assert "Who runs it?" in shown
    assert all(line.split(" ago")[0].split(" for ")[0] in shown for line in why[:1])


def test_task_show_has_documented_fields(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, status="RUNNING", claim_token=1, task_options={"timeout_ms": 5000})
    asyncio.run(_add_history(database_url, UUID(task_id)))
    document = tasks("task", "show", task_id, "--json").document
    assert set(document) == SHOWN
    assert (document["timeout_ms"], document["retry_policy"]) == (5000, None)
    assert document["verdict"] == {"decision": "leave", "reason": "fresh"}
    assert set(document["last_beat"]) == {"role", "at", "age_s"}
    assert [set(attempt) for attempt in document["attempts"]] == [ATTEMPT]
    assert [(set(event), event["evidence"]) for event in document["events"]] == [
        ({"at", "kind", "evidence"}, {"pid": 7})
    ]


def test_task_show_says_how_to_see_a_cut_line(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, kwargs={"to": "x" * 1_000})
    assert "xxx… (all with --full)" in tasks("task", "show", task_id).stdout
    assert "x" * 1_000 in tasks("task", "show", task_id, "--full").stdout


async def _add_history(database_url: str, task_id: UUID) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        """INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at)
           VALUES ($1, 1, 1, 'FAILED', now(), now())""",
        task_id,
    )
    await connection.close()
    await insert(database_url, "horsies_heartbeats", task_id=task_id, claim_token=1, role="runner", sender_id="w:1")
    await insert(database_url, "horsies_events", kind="child_died", task_id=task_id, evidence={"pid": 7})


def test_task_show_text_lists_attempts_and_events(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, claim_token=1, kwargs={"to": "bob"})
    asyncio.run(_add_history(database_url, UUID(task_id)))
    text = tasks("task", "show", task_id).stdout
    assert text.startswith(f"{task_id}  ")
    titles = [line for line in text.splitlines()[1:] if line and not line.startswith(" ")]
    assert titles == ["State", "Why is it waiting?", "Attempts", "Timeline", "Events", "Arguments", "Result"]
    for fact in ('"to": "bob"', "#1 FAILED", "FAILED after 0ms", 'child_died  {"pid": 7}'):
        assert fact in text


def test_unknown_task_exits_5_and_malformed_id_exits_2(tasks: Executable) -> None:
    unknown = tasks("task", "show", "01890a5d-ac96-774b-bcce-b302099a8057")
    assert (unknown.code, unknown.stdout) == (5, "")
    assert "no task 01890a5d-ac96-774b-bcce-b302099a8057" in unknown.stderr
    assert tasks("task", "show", "9a8057").code == 2


def test_task_show_accepts_short_id_and_id_without_dashes(tasks: Executable, database_url: str) -> None:
    task_id = _stored(database_url, status="COMPLETED")
    _stored(database_url)
    for written in (task_id[-8:], task_id[-8:].upper(), task_id.replace("-", "")):
        assert tasks("task", "show", written, "--json").document["id"] == task_id


def test_task_show_unknown_short_id_exits_5(tasks: Executable, database_url: str) -> None:
    _stored(database_url)
    answer = tasks("task", "show", "00000000")
    assert (answer.code, answer.stdout) == (5, "")
    assert "task list --full" in answer.stderr


def test_task_show_ambiguous_short_id_exits_2(tasks: Executable, database_url: str) -> None:
    twins = ["01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac97-774b-bcce-b302099a8057"]
    for twin in twins:
        _stored(database_url, id=UUID(twin))
    answer = tasks("task", "show", "099a8057")
    assert (answer.code, answer.stdout) == (2, "")
    assert all(twin in answer.stderr for twin in twins)


HOSTILE = "\x1b]0;owned\x07\x9b31m[bold]\u202egnp.exe\r\n"


@pytest.mark.parametrize("full", [(), ("--full",)], ids=["cut", "full"])
def test_task_commands_escape_control_sequences(tasks: Executable, database_url: str, full: tuple[str, ...]) -> None:
    long = HOSTILE + "x" * 1_000_000
    task_id = _stored(
        database_url,
        task_name=long,
        queue_name=HOSTILE,
        args=[long],
        kwargs={HOSTILE: long},
        status="FAILED",
        error_code=HOSTILE,
        failed_reason=long,
        result={"err": {"message": long}},
    )
    answers = {
        "list": tasks("task", "list", COLUMNS="160"),
        "list as JSON": tasks("task", "list", "--json"),
        "show": tasks("task", "show", task_id, *full),
        "show as JSON": tasks("task", "show", task_id, "--json"),
    }
    for answer in answers.values():
        assert answer.code == 0
        assert not any(_acts_on_a_terminal(character) for character in answer.stdout)
    assert "[bold]" in answers["list"].stdout
    assert answers["show as JSON"].document["args"] == [long]
    assert len(answers["list"].stdout) < 1000
    assert (len(answers["show"].stdout) > 1_000_000) is bool(full)


def _acts_on_a_terminal(character: str) -> bool:
    return (character < " " and character != "\n") or "\x7f" <= character <= "\x9f" or character == "\u202e"


@pytest.mark.parametrize(
    "command", [("list",), ("show", "01890a5d-ac96-774b-bcce-b302099a8057"), ("send", "x")], ids=str
)
def test_missing_tables_hint_at_migrate_and_are_not_created(
    horsies: Executable, empty_database_url: str, command: tuple[str, ...]
) -> None:
    answer = horsies("task", *command, "--database-url", empty_database_url)
    assert answer.code == 1
    assert "error[HRS-219]" in answer.stderr
    assert f"run: horsies db migrate --database-url '{empty_database_url}'" in answer.stderr
    assert horsies("db", "status", "--json", "--database-url", empty_database_url).document["tables"] == []


def test_unreachable_database_exits_7(horsies: Executable) -> None:
    for command in (("list",), ("send", "x")):
        answer = horsies("task", *command, "--database-url", "postgresql://me:hunter2@127.0.0.1:1/db")
        assert answer.code == 7
        assert "hunter2" not in answer.stdout + answer.stderr


def test_task_show_masks_secret_arguments(tasks: Executable, database_url: str) -> None:
    arguments = {"user": "ada", "api_token": "t0k3n", "nested": {"password": "hunter2"}}
    task_id = str(asyncio.run(insert_task(database_url, kwargs=arguments)))
    text = tasks("task", "show", task_id, "--full").stdout
    assert "ada" in text
    assert "t0k3n" not in text
    assert "hunter2" not in text
