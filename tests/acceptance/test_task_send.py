"""`horsies task send`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.cli import CommandResult, Executable

APP = """
from horsies import Horsies, TaskError, TaskResult

print("hello from the app")
app = Horsies()

@app.task("double")
def double(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * number)
"""


@pytest.fixture
def tasks(tmp_path: Path, database_url: str) -> Executable:
    """The executable on an empty migrated database."""
    return Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


def _row(tasks: Executable, task_id: str) -> dict[str, Any]:
    return tasks("task", "show", task_id, "--json").document


def test_send_without_app_stores_the_task_as_given(tasks: Executable) -> None:
    sent = tasks("task", "send", "mail.send", "--args", '[1, "é"]', "--kwargs", '{"to": null}', "--priority", "7")
    assert sent.code == 0
    row = _row(tasks, sent.stdout.strip())
    assert (row["name"], row["queue"], row["priority"], row["status"]) == ("mail.send", "default", 7, "PENDING")
    assert (row["args"], row["kwargs"]) == ([1, "é"], {"to": None})


def test_values_and_kwarg_options_are_json_or_text(tasks: Executable) -> None:
    sent = tasks(
        "task", "send", "greet", "Ada", "5", "[1, 2]", "--kwarg", "lang=de", "--kwarg", "n=2", "--kwarg", "x=a=b"
    )
    row = _row(tasks, sent.stdout.strip())
    assert (row["args"], row["kwargs"]) == (["Ada", 5, [1, 2]], {"lang": "de", "n": 2, "x": "a=b"})


@pytest.mark.parametrize(
    "arguments",
    [("Ada", "--args", "[1]"), ("--kwarg", "lang"), ("--kwarg", "1x=2"), ("--kwarg", "a=1", "--kwargs", '{"a": 2}')],
)
def test_contradicting_arguments_exit_2(tasks: Executable, arguments: tuple[str, ...]) -> None:
    answer = tasks("task", "send", "greet", *arguments)
    assert (answer.code, answer.stdout) == (2, "")


def test_delay_option_sets_due_time(tasks: Executable) -> None:
    sent = tasks("task", "send", "x", "--delay", "1h", "--json").document
    assert set(sent) == {"id", "result"}
    row = _row(tasks, sent["id"])
    assert row["enqueued_at"] > row["sent_at"]


def test_same_idempotency_key_sends_once(tasks: Executable) -> None:
    first, second = (tasks("task", "send", "x", "--args", "[1]", "--key", "k") for _ in range(2))
    other = tasks("task", "send", "x", "--args", "[2]", "--key", "k")
    assert first.stdout == second.stdout
    assert other.code == 1
    assert "error[IDEMPOTENCY_KEY_CONFLICT]" in other.stderr


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--args", "[1,", "--args is not valid JSON (line 1, column 4)"),
        ("--kwargs", '{"a": }', "--kwargs is not valid JSON (line 1, column 7)"),
        ("--args", '{"a": 1}', "--args must be an array"),
        ("--kwargs", "[]", "--kwargs must be an object"),
        ("--args", "[" * 100_000, "--args is not valid JSON: nested too deeply"),
    ],
)
def test_invalid_json_exits_2_with_position(tasks: Executable, option: str, text: str, expected: str) -> None:
    answer = tasks("task", "send", "x", option, text)
    assert answer.code == 2
    assert f"error[HRS-206]: {expected}" in answer.stderr


@pytest.mark.parametrize(
    ("option", "text", "meant"), [("--args", '{"a": 1}', "--kwargs"), ("--kwargs", "[1]", "--args")]
)
def test_arguments_in_the_wrong_option_get_a_hint(tasks: Executable, option: str, text: str, meant: str) -> None:
    answer = tasks("task", "send", "x", option, text)
    assert answer.code == 2
    assert f"hint: did you mean {meant}?" in answer.stderr


def test_unstorable_values_are_rejected(tasks: Executable) -> None:
    answer = tasks("task", "send", "x", "--args", "[NaN]")
    assert answer.code == 1
    assert "error[VALIDATION_FAILED]" in answer.stderr
    assert tasks("task", "list", "--json").document["tasks"] == []


def test_overlong_task_name_is_rejected_without_source_location(tasks: Executable) -> None:
    answer = tasks("task", "send", "x" * 256)
    assert answer.code == 1
    assert "255" in answer.stderr
    assert "-->" not in answer.stderr


def test_send_without_app_says_that_nothing_is_validated(tasks: Executable) -> None:
    answer = tasks("task", "send", "x", "--queue", "mail.out-1_b")
    assert "without validation" in answer.stderr
    assert _row(tasks, answer.stdout.strip())["queue"] == "mail.out-1_b"
    assert tasks("task", "send", "x", "--quiet").stderr == ""


@pytest.mark.parametrize("queue", ["", "no spaces", "q" * 101])
def test_invalid_queue_name_is_rejected_without_app(tasks: Executable, queue: str) -> None:
    answer = tasks("task", "send", "x", "--queue", queue)
    assert (answer.code, answer.stdout) == (1, "")
    assert "1 to 100 letters" in answer.stderr


def test_unknown_argument_lists_the_parameters(tasks: Executable, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP)
    answer = tasks("task", "send", "double", "--kwargs", '{"nubmer": 1}', "--app", "main:app")
    assert answer.code == 1
    assert "argument 'nubmer': unknown\nhint: its parameters: number\n" in answer.stderr


def test_app_validates_the_queue(tasks: Executable, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP)
    answer = tasks("task", "send", "double", "--args", "[1]", "--queue", "mail", "--app", "main:app")
    assert answer.code == 1
    assert "error[HRS-200]" in answer.stderr
    assert "[queues.mail]" in answer.stderr


def test_app_validates_the_arguments(tasks: Executable, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(APP)
    good = tasks("task", "send", "double", "--args", "[21]", "--app", "main:app")
    wrong = tasks("task", "send", "double", "--args", '["many"]', "--app", "main:app")
    unknown = tasks("task", "send", "treble", "--app", "main:app")
    assert (good.code, len(good.stdout.splitlines())) == (0, 1)
    assert (wrong.code, unknown.code) == (1, 5)
    assert "error[VALIDATION_FAILED]: double: argument 'number'" in wrong.stderr
    assert "error[HRS-300]" in unknown.stderr
    assert "registered tasks: double" in unknown.stderr


def test_app_sends_to_database_url_option(horsies: Executable, tmp_path: Path, database_url: str) -> None:
    (tmp_path / "main.py").write_text(APP)
    sent = horsies("task", "send", "double", "--args", "[1]", "--app", "main:app", "--database-url", database_url)
    listed = horsies("task", "list", "--json", "--database-url", database_url).document
    assert [task["id"] for task in listed["tasks"]] == [sent.stdout.strip()]


async def _beside_a_worker(
    database_url: str, status: str, result: dict[str, Any], command: Callable[[], CommandResult]
) -> CommandResult:
    """Run a command and finish the first task that arrives with this result."""
    connection = await asyncpg.connect(database_url)
    arrived = asyncio.Event()

    def notice(*_: object) -> None:
        arrived.set()

    await connection.add_listener("horsies_task_new", notice)
    running = asyncio.create_task(asyncio.to_thread(command))
    await arrived.wait()
    end = "UPDATE horsies_tasks SET status = $1, terminal_at = now(), result = $2 RETURNING id::text"
    task_id = await connection.fetchval(end, status, json.dumps(result))
    await connection.execute("SELECT pg_notify('horsies_task_done', $1)", task_id)
    answer = await running
    await connection.close()
    return answer


def test_wait_prints_the_result(tasks: Executable, database_url: str) -> None:
    def send() -> CommandResult:
        return tasks("task", "send", "double", "--wait")

    answer = asyncio.run(_beside_a_worker(database_url, "COMPLETED", {"ok": 42}, send))
    assert (answer.code, answer.stdout) == (0, '{"ok":42}\n')


def test_wait_timeout_exits_1_and_warns_about_missing_workers(tasks: Executable) -> None:
    answer = tasks("task", "send", "double", "--wait", "--timeout", "50ms", "--json")
    assert answer.code == 1
    assert answer.document["result"]["err"]["error_code"] == "WAIT_TIMEOUT"
    assert "warning: no live worker" in answer.stderr
    assert _row(tasks, answer.document["id"])["status"] == "PENDING"


def test_wait_for_failing_task_exits_1(tasks: Executable, database_url: str) -> None:
    def send() -> CommandResult:
        return tasks("task", "send", "double", "--wait", "--json")

    failure = {"err": {"error_code": "SMTP_DOWN", "message": "no answer"}}
    answer = asyncio.run(_beside_a_worker(database_url, "FAILED", failure, send))
    assert answer.code == 1
    assert answer.document["result"]["err"]["error_code"] == "SMTP_DOWN"
