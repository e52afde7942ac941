"""`horsies check` says what is wrong with an app, all of a phase at once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest

from tests.support.cli import APP, CommandResult, Executable, Project
from tests.support.databases import PGBOUNCER, pgbouncer

EXAMPLE = Path(__file__).parents[2] / "horsies.toml.example"
UNREACHABLE = "postgresql://me:hunter2@127.0.0.1:1/db"


@pytest.fixture
def project(horsies: Executable) -> Project:
    """The folder in which the executable runs."""
    return Project(horsies.cwd)


def test_the_example_passes_as_it_is(horsies: Executable) -> None:
    shutil.copy(EXAMPLE, horsies.cwd / "horsies.toml")
    answer = horsies("check")
    assert (answer.code, answer.stdout, answer.stderr) == (0, "ok: all validations passed\n9 tasks\n", "")


def test_a_good_app_passes_with_the_number_of_its_tasks(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n")
    project.write_task("tasks.py", name="resize")
    assert horsies("check", "main:app").stdout == "ok: all validations passed\n1 task\n"
    document = horsies("check", "main.py", "--json").document
    assert document == {"ok": True, "phase": None, "tasks": 1, "errors": [], "warnings": []}


def test_an_app_without_tasks_passes_with_a_warning(horsies: Executable, project: Project) -> None:
    project.write("main.py", APP)
    answer = horsies("check", "main")
    assert answer.code == 0
    assert "warning: the app has no tasks" in answer.stderr
    assert horsies("check", "main", "--json").document["warnings"] == ["the app has no tasks"]


def test_a_doubled_name_is_shown_with_both_places(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['one.py', 'two.py'])\n")
    first = project.write_task("one.py", name="resize")
    second = project.write_task("two.py", name="resize")
    answer = horsies("check", "main")
    assert (answer.code, answer.stdout) == (1, "")
    assert "error[HRS-301]: duplicate task name 'resize'" in answer.stderr
    assert f"--> {second}:" in answer.stderr
    assert f"note: first defined at {first}:" in answer.stderr


def test_a_wrong_return_type_is_shown_where_it_stands(horsies: Executable, project: Project) -> None:
    path = project.write("main.py", f"{APP}\n@app.task('resize')\ndef resize(width: int) -> int:\n    return width\n")
    answer = horsies("check", "main")
    assert answer.code == 1
    assert "error[HRS-101]: task 'resize'" in answer.stderr
    assert f"--> {path}:4" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_several_errors_are_all_shown_in_text_and_in_json(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['one.py', 'gone.py', 'three.py'])\n")
    project.write("one.py", "from main import app\n@app.task('a', priority=0)\ndef a(): ...\n")
    project.write("three.py", "raise RuntimeError('no \\x1b[31mred')\n")
    answer = horsies("check", "main")
    assert [line[:14] for line in answer.stderr.splitlines() if line.startswith("error")] == [
        "error[HRS-100]",
        "error[HRS-102]",
        "error[HRS-206]",
        "error[HRS-210]",
    ]
    assert "\x1b" not in answer.stderr
    document = horsies("check", "main", "--json").document
    assert (document["ok"], document["phase"], document["tasks"]) == (False, "imports", 0)
    assert [error["code"] for error in document["errors"]] == ["HRS-100", "HRS-102", "HRS-206", "HRS-210"]
    assert set(document["errors"][0]) == {"code", "message", "location", "notes", "hint"}


@pytest.mark.parametrize(
    ("locator", "code", "said"),
    [
        ("nowhere.main:app", "HRS-207", "no module named nowhere.main"),
        ("nowhere/main.py", "HRS-207", "no such file: nowhere/main.py"),
        ("shop.main.py", "HRS-206", "a module or a file"),
        ("two", "HRS-207", "there are 2 apps in two"),
        ("unparsed", "HRS-210", "SyntaxError"),
    ],
)
def test_an_app_that_is_not_found_is_exit_1_with_a_hint(
    horsies: Executable, project: Project, locator: str, code: str, said: str
) -> None:
    project.write("shop/main.py", APP)
    project.write("two.py", f"{APP}other = Horsies()\n")
    project.write("unparsed.py", "app = Horsies(\n")
    answer = horsies("check", locator)
    assert (answer.code, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"error[{code}]: ")
    assert said in answer.stderr
    assert "hint: " in answer.stderr


def test_without_any_app_both_ways_to_name_one_are_told(horsies: Executable) -> None:
    answer = horsies("check")
    assert answer.code == 1
    assert "app.locator" in answer.stderr


def test_wrong_settings_are_the_first_phase(horsies: Executable, project: Project) -> None:
    project.write("horsies.toml", "[recovery]\ncheck_intervall_ms = 5\n[worker]\nprocesses = 0\n")
    document = horsies("check", "horsies.sample:app", "--json").document
    assert document["phase"] == "settings"
    assert {error["code"] for error in document["errors"]} == {"HRS-217", "HRS-218"}


def test_what_modules_print_is_no_part_of_the_document(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}print('hello')\n")
    answer = horsies("check", "main", "--json")
    assert answer.document["ok"]
    assert "hello" in answer.stderr


def test_the_file_named_on_the_command_line_reaches_the_app(horsies: Executable, project: Project) -> None:
    project.write("main.py", APP)
    project.write("elsewhere/other.toml", '[app]\nmodules = ["gone.py"]\n')
    answer = horsies("check", "main", "--config", "elsewhere/other.toml")
    assert "task module gone.py does not exist" in answer.stderr


def test_live_passes_on_a_migrated_database(horsies: Executable, database_url: str) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", database_url)
    assert (answer.code, answer.stdout) == (0, "ok: all validations passed\n9 tasks\n")


def test_live_passes_on_an_embedded_server_that_it_has_to_start(embedded: Executable) -> None:
    assert embedded("check", "horsies.sample:app", "--live").code == 0


def test_live_tells_of_a_database_without_tables(horsies: Executable, empty_database_url: str) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", empty_database_url)
    assert answer.code == 1
    assert "error[HRS-219]" in answer.stderr
    assert "hint: run: horsies db migrate" in answer.stderr


def test_live_tells_of_an_unreachable_server_once_and_keeps_its_password(horsies: Executable) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", UNREACHABLE)
    assert (answer.code, answer.stderr.count("error[")) == (1, 1)
    assert "error[HRS-211]: cannot reach postgresql://me:***@127.0.0.1:1/db" in answer.stderr
    assert "hunter2" not in answer.stderr


def test_live_tells_of_an_address_that_must_change(horsies: Executable, database_url: str) -> None:
    missing = database_url.replace("/test_", "/nope_")
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", missing)
    assert answer.code == 1
    assert "error[HRS-203]: the database does not exist" in answer.stderr


def test_live_tells_of_a_database_from_the_future(horsies: Executable, database_url: str) -> None:
    async def from_the_future() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute("INSERT INTO horsies_migrations (version, name, checksum) VALUES (9999, 'later', '')")
        await connection.close()

    asyncio.run(from_the_future())
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", database_url)
    assert answer.code == 1
    assert "hint: upgrade horsies" in answer.stderr


@pytest.mark.skipif(PGBOUNCER is None, reason="needs the pgbouncer package")
def test_live_tells_of_a_session_address_that_does_not_lead_past_the_pooler(
    horsies: Executable, database_url: str
) -> None:
    def check(pooled: str, direct: str) -> CommandResult:
        return horsies(
            "check",
            "horsies.sample:app",
            "--live",
            "--database-url",
            pooled,
            HORSIES_BROKER__PGBOUNCER_TRANSACTION_MODE="true",
            HORSIES_BROKER__SESSION_DATABASE_URL=direct,
        )

    with pgbouncer(database_url, pool_size=2) as pooled:
        assert check(pooled, database_url).code == 0
        deaf = check(pooled, pooled.replace("127.0.0.1", "localhost"))
    assert deaf.code == 1
    assert "error[HRS-203]" in deaf.stderr
    assert "broker.session_database_url" in deaf.stderr
