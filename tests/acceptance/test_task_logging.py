"""Log records of tasks in the worker's log, with and without logging that the user has configured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import Executable, Project

TASKS = """
import asyncio, logging, os, threading
from horsies import Horsies

app = Horsies()
log = logging.getLogger("shop")

@app.task("greet")
def greet() -> None:
    log.debug("not shown")
    log.info("greeting %s", "Ada", extra={"order": 7})
    print("printed")
    thread = threading.Thread(target=log.warning, args=("from a thread",))
    thread.start(), thread.join()

@app.task("boom")
def boom() -> None:
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("caught")
    raise ValueError("unexpected")

@app.task("declined", exception_mapper={KeyError: "DECLINED"})
def declined() -> None:
    raise KeyError("card")

@app.task("wait")
async def wait(name: str) -> None:
    log.info("%s begins", name)
    await asyncio.sleep(0.2)
    log.info("%s ends", name)

@app.task("fork")
def fork() -> None:
    if not (pid := os.fork()):
        log.warning("in a fork")
        os._exit(0)
    os.waitpid(pid, 0)
"""
CONSOLE = """
import logging
logging.basicConfig(level="INFO", format="MINE %(message)s")
from tasks import app
"""
DICT_CONFIG = """
import logging.config
logging.config.dictConfig({
    "version": 1,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "shop.log"}},
    "root": {"level": "INFO", "handlers": ["file"]},
})
from tasks import app
"""

OWN_CONSOLE = """
import logging
log = logging.getLogger("shop")
log.addHandler(logging.StreamHandler())
log.propagate = False
from tasks import app
"""


@pytest.fixture
def project(horsies: Executable, database_url: str) -> Project:
    horsies.environment["HORSIES_BROKER__DATABASE_URL"] = database_url
    project = Project(horsies.cwd)
    for name, text in (
        ("tasks.py", TASKS),
        ("console.py", CONSOLE),
        ("files.py", DICT_CONFIG),
        ("own.py", OWN_CONSOLE),
    ):
        project.write(name, text)
    return project


def run(horsies: Executable, *tasks: str, app: str = "tasks:app") -> list[dict[str, Any]]:
    """Send these tasks, run them, and return the log records of tasks."""
    for task in tasks:
        answer = horsies("task", "send", *task.split(), "--app", "tasks:app")
        assert answer.code == 0, answer.stderr
    answer = horsies("worker", app, "--burst", "--processes", "1", "--log-format", "json")
    assert answer.code == 0, answer.stderr
    records = [json.loads(line) for line in answer.stderr.splitlines()]
    return [record for record in records if record["logger"] in {"shop", "horsies.task"}]


@pytest.mark.usefixtures("project")
def test_records_have_level_logger_task_and_fields(horsies: Executable) -> None:
    records = run(horsies, "greet")
    shown = [(each["level"], each["logger"], each["message"], each["task_name"], each["attempt"]) for each in records]
    assert shown == [
        ("INFO", "shop", "greeting Ada", "greet", 1),
        ("INFO", "horsies.task", "printed", "greet", 1),
        ("WARNING", "shop", "from a thread", "greet", 1),
    ]
    assert records[0]["order"] == 7
    assert len({each["task_id"] for each in records}) == 1


@pytest.mark.usefixtures("project")
def test_each_traceback_is_one_record(horsies: Executable) -> None:
    caught, unhandled = run(horsies, "boom")
    assert (caught["message"], unhandled["message"]) == ("caught", "unhandled ValueError: unexpected")
    assert caught["exception"].endswith("ZeroDivisionError: division by zero")
    assert unhandled["exception"].endswith("ValueError: unexpected")
    assert "invocation.py" not in unhandled["exception"]


def test_failing_filter_of_the_user_does_not_end_the_child(horsies: Executable, project: Project) -> None:
    broken = "logging.getLogger('horsies.task').addFilter(lambda record: 'unhandled' not in record.msg or 1 / 0)"
    project.write("broken.py", f"import logging\nfrom tasks import app\n{broken}\n")
    assert [each["message"] for each in run(horsies, "boom", app="broken:app")] == ["caught"]
    assert "UNHANDLED_EXCEPTION" in horsies("task", "list", "--json").stdout


def test_failing_filter_in_the_worker_loses_only_its_lines(horsies: Executable, project: Project) -> None:
    broken = "logging.getLogger('horsies.task').addFilter(lambda record: 1 / 0)"
    project.write("broken.py", f"import logging\nfrom tasks import app\n{broken}\n")
    assert run(horsies, "greet", app="broken:app") == []
    assert '"COMPLETED"' in horsies("task", "list", "--json").stdout


@pytest.mark.usefixtures("project")
def test_mapped_exceptions_are_not_logged(horsies: Executable) -> None:
    assert run(horsies, "declined") == []


@pytest.mark.usefixtures("project")
def test_records_of_concurrent_coroutines_name_their_own_task(horsies: Executable) -> None:
    records = run(horsies, "wait a", "wait b")
    ids = {each["message"].split()[0]: each["task_id"] for each in records}
    assert len(set(ids.values())) == 2
    assert all(each["task_id"] == ids[each["message"].split()[0]] for each in records)
    assert len(records) == 4


@pytest.mark.usefixtures("project")
def test_record_of_a_fork_arrives_by_its_pipe(horsies: Executable) -> None:
    assert [each["message"] for each in run(horsies, "fork")] == ["WARNING shop  in a fork"]


@pytest.mark.usefixtures("project")
def test_users_console_handler_keeps_its_format_and_writes_once(horsies: Executable) -> None:
    records = run(horsies, "greet", "boom", app="console:app")
    assert [(each["level"], each["message"]) for each in records] == [
        ("INFO", "MINE greeting Ada"),
        ("INFO", "printed"),
        ("WARNING", "MINE from a thread"),
        ("ERROR", "MINE caught"),
        ("ERROR", "MINE unhandled ValueError: unexpected"),
    ]
    assert all("Traceback" in each["exception"] for each in records[3:])


def test_users_file_handler_and_the_worker_both_get_records(horsies: Executable, project: Project) -> None:
    records = run(horsies, "greet", app="files:app")
    assert [each["message"] for each in records] == ["greeting Ada", "printed", "from a thread"]
    assert (project.folder / "shop.log").read_text().splitlines() == ["greeting Ada", "from a thread"]


@pytest.mark.usefixtures("project")
def test_console_of_another_logger_is_treated_like_printed_lines(horsies: Executable) -> None:
    records = run(horsies, "greet", app="own:app")
    assert [(each["level"], each["logger"], each["message"]) for each in records] == [
        ("WARNING", "horsies.task", "greeting Ada"),
        ("INFO", "horsies.task", "printed"),
        ("WARNING", "horsies.task", "from a thread"),
    ]
