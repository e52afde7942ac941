"""`horsies check` reports every error of the first failing phase."""

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
    """The working folder of the executable."""
    return Project(horsies.cwd)


def test_example_config_passes(horsies: Executable) -> None:
    shutil.copy(EXAMPLE, horsies.cwd / "horsies.toml")
    answer = horsies("check")
    assert (answer.code, answer.stdout, answer.stderr) == (0, "ok: all validations passed\n9 tasks\n", "")


def test_valid_app_passes_and_prints_task_count(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['tasks.py'])\n")
    project.write_task("tasks.py", name="resize")
    assert horsies("check", "main:app").stdout == "ok: all validations passed\n1 task\n"
    document = horsies("check", "main.py", "--json").document
    assert document == {"ok": True, "phase": None, "tasks": 1, "errors": [], "warnings": []}


def test_app_without_tasks_passes_with_warning(horsies: Executable, project: Project) -> None:
    project.write("main.py", APP)
    answer = horsies("check", "main")
    assert answer.code == 0
    assert "warning: the app has no tasks" in answer.stderr
    assert horsies("check", "main", "--json").document["warnings"] == ["the app has no tasks"]


def test_duplicate_task_name_shows_both_locations(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}app.discover_tasks(['one.py', 'two.py'])\n")
    first = project.write_task("one.py", name="resize")
    second = project.write_task("two.py", name="resize")
    answer = horsies("check", "main")
    assert (answer.code, answer.stdout) == (1, "")
    assert "error[HRS-301]: duplicate task name 'resize'" in answer.stderr
    assert f"--> {second}:" in answer.stderr
    assert f"note: first defined at {first}:" in answer.stderr


def test_wrong_return_type_shows_its_location(horsies: Executable, project: Project) -> None:
    task = "@app.task('resize')\ndef resize(width: int) -> TaskResult:\n    return width\n"
    path = project.write("main.py", f"{APP}from horsies import TaskResult\n{task}")
    answer = horsies("check", "main")
    assert answer.code == 1
    assert "error[HRS-101]: task 'resize'" in answer.stderr
    assert f"--> {path}:4" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_all_errors_are_shown_as_text_and_json(horsies: Executable, project: Project) -> None:
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
    ("locator", "code", "expected"),
    [
        ("nowhere.main:app", "HRS-207", "no module named nowhere.main"),
        ("nowhere/main.py", "HRS-207", "no such file: nowhere/main.py"),
        ("shop.main.py", "HRS-206", "a module or a file"),
        ("two", "HRS-207", "2 apps in two"),
        ("unparsed", "HRS-210", "SyntaxError"),
    ],
)
def test_missing_app_exits_1_with_hint(
    horsies: Executable, project: Project, locator: str, code: str, expected: str
) -> None:
    project.write("shop/main.py", APP)
    project.write("two.py", f"{APP}other = Horsies()\n")
    project.write("unparsed.py", "app = Horsies(\n")
    answer = horsies("check", locator)
    assert (answer.code, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"error[{code}]: ")
    assert expected in answer.stderr
    assert "hint: " in answer.stderr


def test_no_app_given_hints_at_both_ways(horsies: Executable) -> None:
    answer = horsies("check")
    assert answer.code == 1
    assert "app.locator" in answer.stderr


def test_invalid_settings_fail_the_first_phase(horsies: Executable, project: Project) -> None:
    project.write("horsies.toml", "[recovery]\ncheck_intervall_ms = 5\n[worker]\nprocesses = 0\n")
    document = horsies("check", "horsies.sample:app", "--json").document
    assert document["phase"] == "settings"
    assert {error["code"] for error in document["errors"]} == {"HRS-217", "HRS-218"}


def test_module_output_stays_out_of_the_json_document(horsies: Executable, project: Project) -> None:
    project.write("main.py", f"{APP}print('hello')\n")
    answer = horsies("check", "main", "--json")
    assert answer.document["ok"]
    assert "hello" in answer.stderr


def test_config_option_reaches_the_app(horsies: Executable, project: Project) -> None:
    project.write("main.py", APP)
    project.write("elsewhere/other.toml", '[app]\nmodules = ["gone.py"]\n')
    answer = horsies("check", "main", "--config", "elsewhere/other.toml")
    assert "task module gone.py does not exist" in answer.stderr


def test_live_check_passes_on_migrated_database(horsies: Executable, database_url: str) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", database_url)
    assert (answer.code, answer.stdout) == (0, "ok: all validations passed\n9 tasks\n")


def test_live_check_starts_the_embedded_server(embedded: Executable) -> None:
    assert embedded("check", "horsies.sample:app", "--live").code == 0


def test_live_check_reports_missing_tables(horsies: Executable, empty_database_url: str) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", empty_database_url)
    assert answer.code == 1
    assert "error[HRS-219]" in answer.stderr
    assert "hint: run: horsies db migrate" in answer.stderr


def test_live_check_reports_unreachable_server_without_password(horsies: Executable) -> None:
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", UNREACHABLE)
    assert (answer.code, answer.stderr.count("error[")) == (1, 1)
    assert "error[HRS-211]: cannot reach postgresql://me:***@127.0.0.1:1/db" in answer.stderr
    assert "hunter2" not in answer.stderr


def test_live_check_reports_unusable_url(horsies: Executable, database_url: str) -> None:
    missing = database_url.replace("/test_", "/nope_")
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", missing)
    assert answer.code == 1
    assert "error[HRS-203]: the database does not exist" in answer.stderr


def test_live_check_reports_newer_schema(horsies: Executable, database_url: str) -> None:
    async def from_the_future() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute("INSERT INTO horsies_migrations (version, name, checksum) VALUES (9999, 'later', '')")
        await connection.close()

    asyncio.run(from_the_future())
    answer = horsies("check", "horsies.sample:app", "--live", "--database-url", database_url)
    assert answer.code == 1
    assert "hint: upgrade horsies" in answer.stderr


@pytest.mark.skipif(PGBOUNCER is None, reason="needs the pgbouncer package")
def test_live_check_reports_session_url_behind_pooler(horsies: Executable, database_url: str) -> None:
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
        result = check(pooled, pooled.replace("127.0.0.1", "localhost"))
    assert result.code == 1
    assert "error[HRS-203]" in result.stderr
    assert "broker.session_database_url" in result.stderr
