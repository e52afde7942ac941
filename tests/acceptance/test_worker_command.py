"""`horsies worker`: rejected options, banner, logs and ping."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import asyncpg
import pytest

from tests.support.cli import APP, CommandResult, Executable, Project
from tests.support.store import make_app
from tests.support.workers import CHILD_NAME, processes_named

EXAMPLE = Path(__file__).parents[2] / "horsies.toml.example"
NO_MODULE = "import nowhere_to_be_found\n"


@pytest.fixture
def project(horsies: Executable) -> Project:
    """The working folder, with an app of one task."""
    project = Project(horsies.cwd)
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n")
    project.write_task("tasks.py", name="resize")
    return project


def refused(horsies: Executable, database_url: str, *arguments: str) -> CommandResult:
    """Run a worker that exits during start-up without touching the database."""
    answer = horsies("worker", *arguments, HORSIES_BROKER__DATABASE_URL=database_url)
    assert answer.stdout == ""
    assert "worker started" not in answer.stderr
    assert "Traceback" not in answer.stderr
    assert asyncio.run(_workers_seen(database_url)) == 0
    return answer


async def _workers_seen(database_url: str) -> int:
    connection = await asyncpg.connect(database_url)
    try:
        return await connection.fetchval("SELECT count(*) FROM horsies_workers")
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:app"], "error[HRS-207]: no module named nowhere"),
        (["list"], "hint: did you mean horsies workers list? "),
        (["main:horse"], "error[HRS-207]: no 'horse' in main"),
        (["main:app", "--queues", "mail"], "error[HRS-103]: worker.queues: no queue 'mail'"),
        (["main:app", "--queues", ""], "worker.queues: must be a list of queue names, not empty"),
        (["main:app", "--processes", "0"], "worker.processes: must be a whole number of at least 1, got 0"),
        (["main:app", "--grace-s", "soon"], "worker.grace_s: must be a number of seconds of at least 0, or none"),
        (["main:app", "--grace-s", "-2"], "worker.grace_s: must be a number of seconds of at least 0, or none"),
        (["main:app", "--log-format", "xml"], "log.format"),
    ],
)
@pytest.mark.usefixtures("project")
def test_invalid_options_are_rejected_with_a_reason(
    horsies: Executable, database_url: str, arguments: list[str], message: str
) -> None:
    answer = refused(horsies, database_url, *arguments)
    assert answer.code == 1
    assert message in answer.stderr
    assert "hint: " in answer.stderr


def test_unimportable_task_module_is_named(horsies: Executable, project: Project, database_url: str) -> None:
    broken = project.write("tasks.py", NO_MODULE)
    answer = refused(horsies, database_url, "main:app")
    assert answer.code == 1
    assert "No module named 'nowhere_to_be_found'" in answer.stderr
    assert f"--> {broken}:1" in answer.stderr


def test_app_without_tasks_is_refused(horsies: Executable, project: Project, database_url: str) -> None:
    project.write("main.py", APP)
    answer = refused(horsies, database_url, "main:app")
    assert answer.code == 1
    assert "the app has no tasks" in answer.stderr


@pytest.mark.usefixtures("project")
def test_worker_never_prints_the_password_of_an_unreachable_server(horsies: Executable) -> None:
    answer = horsies("worker", "main:app", HORSIES_BROKER__DATABASE_URL="mysql://me:hunter2@localhost/db")
    assert answer.code == 1
    assert "hunter2" not in answer.stderr


@pytest.mark.usefixtures("project")
def test_worker_exits_1_after_the_last_allowed_attempt(horsies: Executable, port: int) -> None:
    url = f"postgresql://me@127.0.0.1:{port}/db"
    limits = {"HORSIES_RESILIENCE__DB_RETRY_MAX_ATTEMPTS": "2", "HORSIES_RESILIENCE__DB_RETRY_INITIAL_MS": "100"}
    answer = horsies("worker", "main:app", HORSIES_BROKER__DATABASE_URL=url, **limits)
    assert answer.code == 1
    assert "gave up after 2 failed attempts" in answer.stderr


QUEUES = """
[app]
locator = "main:app"
cluster_wide_cap = 7
[worker]
processes = 2
[queues.mail]
priority = 3
max_concurrency = 5
[queues.rest]
"""


def test_banner_shows_queues_limits_and_recovery_bounds(
    horsies: Executable, project: Project, database_url: str
) -> None:
    project.write("horsies.toml", QUEUES)
    task = (project.folder / "tasks.py").read_text().replace('task("resize")', 'task("resize", queue_name="mail")')
    project.write("tasks.py", task)
    url = database_url.replace("horsies@", "horsies:hunter2@")
    with horsies.start("worker", HORSIES_BROKER__DATABASE_URL=url) as worker:
        worker.wait_for_output("worker started")
        assert worker.stop() == 0
    output = worker.stderr
    assert output.startswith("horsies ")
    assert "hunter2" not in output
    for words in (
        "main:app",
        "horsies:***@",
        "mail (priority 3, at most 5 in flight), rest (priority 1, no cap)",
        "at most 7 in flight in all workers",
        "processes   2",
        "at most 7, plus 4 if tasks send tasks",
        "if this worker dies: claimed tasks back in 2m30s, running in 5m30s",
        "1: resize",
        "starting 2 children",
        "worker stopped",
    ):
        assert words in output


IN_CODE = """
from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, TaskError, TaskResult

app = Horsies(AppConfig(
    queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="mail")],
    broker=PostgresConfig(database_url="{url}"),
))

@app.task("greet", queue_name="mail")
def greet() -> TaskResult[str, TaskError]:
    return TaskResult(ok="hello")
"""


def test_worker_follows_settings_in_app_code(horsies: Executable, project: Project, database_url: str) -> None:
    project.write("main.py", IN_CODE.format(url=database_url))
    with horsies.start("worker", "main:app", "--processes", "1") as worker:
        worker.wait_for_output("worker started")
        sent = horsies("task", "send", "greet", "--app", "main:app", "--wait", "--json")
        assert (sent.code, worker.stop()) == (0, 0), sent
    assert "queues      mail (priority 1, no cap)" in worker.stderr
    assert "database    postgresql://horsies@" in worker.stderr


@pytest.mark.usefixtures("project")
def test_worker_logs_json_lines(horsies: Executable, database_url: str) -> None:
    with horsies.start(
        "worker", "main:app", "--log-format", "json", HORSIES_BROKER__DATABASE_URL=database_url
    ) as worker:
        worker.wait_for_output("worker started")
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.stderr.splitlines()]
    assert (lines[0]["tasks"], lines[0]["queues"]) == ("1: resize", "default")
    (started,) = [line for line in lines if "worker started" in line["message"]]
    assert started["level"] == "INFO"


MIXED = """
from horsies import Horsies, TaskError, TaskResult
app = Horsies()

@app.task("mixed")
def mixed(is_well: bool) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None) if is_well else TaskResult(err=TaskError(error_code="TOO_BAD", message="too\\x1b\\nwet"))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_reports_start_failures_and_task_counts(
    horsies: Executable, project: Project, database_url: str, form: str
) -> None:
    project.write("main.py", MIXED)
    url = {"HORSIES_BROKER__DATABASE_URL": database_url.replace("horsies@", "horsies:hunter2@")}
    with horsies.start("worker", "main:app", "--processes", "1", "--log-format", form, **url) as worker:
        worker.wait_for_output("worker started")
        for is_well in ("true", "false"):
            horsies("task", "send", "mixed", "--args", f"[{is_well}]", "--app", "main:app", "--wait", **url)
        assert worker.stop() == 0
    started, failed, stopped = (
        next(line for line in worker.stderr.splitlines() if f"{event} " in line.replace('"', " "))
        for event in ("worker started", "tasks failed", "worker stopped")
    )
    if form == "text":
        assert f":{worker.popen.pid}  queues=default  processes=1  database=postgresql://horsies:***@" in started
        assert "tasks failed  task_name=mixed  count=1  error_code=TOO_BAD  task_id=" in failed
        assert failed.endswith("  error_message=too\\x1b")
        assert "ran=2  failed=1  unstored=0" in stopped
    else:
        assert json.loads(started)["database"].startswith("postgresql://horsies:***@")
        assert json.loads(failed).items() >= {"task_name": "mixed", "count": 1, "error_message": "too\\x1b"}.items()
        assert json.loads(stopped).items() >= {"ran": 2, "failed": 1, "unstored": 0}.items()


@pytest.mark.usefixtures("project")
def test_running_worker_answers_ping_and_publishes_snapshot(horsies: Executable, database_url: str) -> None:
    app = make_app(database_url)
    with horsies.start("worker", "main:app", "--processes", "1", HORSIES_BROKER__DATABASE_URL=database_url) as worker:
        worker.wait_for_output("worker started")
        (pong,) = app.ping_workers(min_responses=1).unwrap()
        (state,) = app.list_worker_states().unwrap()
        assert worker.stop() == 0
    assert (pong.pid, str(pong.worker_id)) == (worker.popen.pid, str(state.worker_id))
    assert (state.processes, state.tasks_running, state.tasks_claimed) == (1, 0, 0)
    assert app.ping_workers(timeout_seconds=0.2).unwrap() == []
    app.close()


FRAIL = """
import os, pathlib
if "HORSIES_CHILD_PROCESS" in os.environ and pathlib.Path("broken").exists():
    raise RuntimeError("no more")
"""


def test_worker_exits_1_if_children_cannot_start(horsies: Executable, project: Project, database_url: str) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n{FRAIL}")
    with horsies.start("worker", "main:app", "--processes", "1", HORSIES_BROKER__DATABASE_URL=database_url) as worker:
        worker.wait_for_output("worker started")
        project.write("broken")
        (child,) = processes_named(CHILD_NAME, of=worker.popen.pid)
        os.kill(child, signal.SIGKILL)
        assert worker.popen.wait(timeout=20) == 1
    assert "3 children in a row failed to start" in worker.stderr
    assert "worker stopped" in worker.stderr


def test_example_runs_with_embedded_server(embedded: Executable) -> None:
    shutil.copy(EXAMPLE, embedded.cwd / "horsies.toml")
    with embedded.start("worker", "--config", "horsies.toml") as worker:
        worker.wait_for_output("worker started")
        sent = embedded("task", "send", "sample.send_email", "--args", '["me@here", "hello"]', "--wait", "--json")
        assert (sent.code, worker.stop()) == (0, 0), sent
    assert "embedded PostgreSQL in " in worker.stderr


BURST_APP = """
from horsies import Horsies, RetryPolicy, TaskError, TaskResult, current_task
app = Horsies()

@app.task("once")
def once() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("twice", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["AGAIN"]))
def twice() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="AGAIN")) if current_task().attempt == 1 else TaskResult(ok=2)
"""


def test_burst_ends_once_due_tasks_and_their_retries_are_done(horsies: Executable, database_url: str) -> None:
    (horsies.cwd / "main.py").write_text(BURST_APP)
    database = {"HORSIES_BROKER__DATABASE_URL": database_url}
    for arguments in (("once",), ("twice",), ("once", "--delay", "1h")):
        assert horsies("task", "send", *arguments, "--app", "main:app", **database).code == 0
    answer = horsies("worker", "main:app", "--burst", "--processes", "1", **database)
    assert answer.code == 0, answer.stderr
    listed = horsies("task", "list", "--json", **database).document["tasks"]
    assert sorted((task["name"], task["status"]) for task in listed) == [
        ("once", "COMPLETED"),
        ("once", "PENDING"),
        ("twice", "COMPLETED"),
    ]
