"""`horsies worker` as an operator meets it: what it refuses, what it says first, and how it answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.support.project import APP, Project

if TYPE_CHECKING:
    from tests.support.executable import Answer, Executable

NO_MODULE = "import nowhere_to_be_found\n"


@pytest.fixture
def project(horsies: Executable) -> Project:
    """The folder in which the executable runs, with an app of one task."""
    project = Project(horsies.cwd)
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n")
    project.write_task("tasks.py", name="resize")
    return project


def refused(horsies: Executable, database_url: str, *arguments: str) -> Answer:
    """The answer of a worker that ends at its start, having touched nothing."""
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
        (["nowhere:app"], "error[HRS-207]: there is no module nowhere"),
        (["main:horse"], "error[HRS-207]: there is no 'horse' in main"),
        (["main:app", "--queues", "mail"], "error[HRS-103]: worker.queues: no queue 'mail'"),
        (["main:app", "--processes", "0"], "worker.processes: must be a whole number of at least 1, got 0"),
        (["main:app", "--grace-s", "soon"], "worker.grace_s: must be a number of seconds of at least 0, or none"),
        (["main:app", "--grace-s", "-2"], "worker.grace_s: must be a number of seconds of at least 0, or none"),
        (["main:app", "--log-format", "xml"], "log.format"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_makes_no_sense_is_refused_with_a_reason(
    horsies: Executable, database_url: str, arguments: list[str], message: str
) -> None:
    answer = refused(horsies, database_url, *arguments)
    assert answer.code == 1
    assert message in answer.stderr
    assert "hint: " in answer.stderr


def test_a_task_module_that_cannot_be_imported_is_named(
    horsies: Executable, project: Project, database_url: str
) -> None:
    broken = project.write("tasks.py", NO_MODULE)
    answer = refused(horsies, database_url, "main:app")
    assert answer.code == 1
    assert "No module named 'nowhere_to_be_found'" in answer.stderr
    assert f"--> {broken}:1" in answer.stderr


def test_an_app_without_tasks_is_refused(horsies: Executable, project: Project, database_url: str) -> None:
    project.write("main.py", APP)
    answer = refused(horsies, database_url, "main:app")
    assert answer.code == 1
    assert "the app has no tasks" in answer.stderr


@pytest.mark.usefixtures("project")
def test_an_unreachable_server_of_the_wrong_kind_never_shows_its_password(horsies: Executable) -> None:
    answer = horsies("worker", "main:app", HORSIES_BROKER__DATABASE_URL="mysql://me:hunter2@localhost/db")
    assert answer.code == 1
    assert "hunter2" not in answer.stderr
