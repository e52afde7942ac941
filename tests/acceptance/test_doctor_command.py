"""`horsies doctor` as a process."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.support.cli import CommandResult, Executable
from tests.support.rows import (
    HOUR,
    insert_finished_task,
    insert_listening_worker,
    insert_old_worker,
    insert_owned_task,
    insert_task,
)

NAMES = [
    "config",
    "database",
    "schema",
    "listen",
    "pooler",
    "connections",
    "clock",
    "workers",
    "fleet_config",
    "stale",
    "unknown_tasks",
    "outage_grace",
    "outbox",
    "retention",
    "schedules",
    "disabled_operations",
    "long_transactions",
    "bloat",
    "notify_queue",
    "locks",
    "access",
    "rows",
    "embedded",
]


def statuses(answer: CommandResult) -> dict[str, str]:
    return {check["name"]: check["status"] for check in answer.document["checks"]}


def test_doctor_reports_every_check_with_its_fields(horsies: Executable, database_url: str) -> None:
    answer = horsies("doctor", "--json", "--database-url", database_url)
    assert (answer.code, answer.document["ok"]) == (0, True)
    assert [check["name"] for check in answer.document["checks"]] == NAMES
    assert all(set(check) == {"name", "status", "detail", "hint"} for check in answer.document["checks"])
    assert statuses(answer)["workers"] == "warn"


def test_doctor_prints_hints_for_failures(horsies: Executable, database_url: str) -> None:
    async def spoil() -> None:
        await insert_finished_task(database_url, age=2000 * HOUR)
        gone = await insert_old_worker(database_url, state="stopped", age=HOUR)
        await insert_task(database_url, status="RUNNING", claimed_by_worker_id=gone)
        connection = await asyncpg.connect(database_url)
        await connection.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_tasks_announce")
        await connection.close()

    asyncio.run(spoil())
    answer = horsies("doctor", "--json", "--database-url", database_url)
    found = statuses(answer)
    assert (answer.code, found["listen"], found["retention"], found["stale"]) == (1, "fail", "warn", "fail")
    as_text = horsies("doctor", "--database-url", database_url)
    assert "hint: retention: run: horsies cleanup" in as_text.stderr
    assert "horsies_tasks_announce" in as_text.stderr


def test_doctor_fails_for_stale_task_without_workers(horsies: Executable, database_url: str) -> None:
    asyncio.run(
        insert_owned_task(
            database_url,
            "RUNNING",
            owner=asyncio.run(insert_listening_worker(database_url, silent_s=900)),
            silent_s=900,
        )
    )
    answer = horsies("doctor", "--database-url", database_url)
    assert answer.code == 1
    assert "hint: stale: preview recovery with horsies sweep --dry-run" in answer.stderr
    asyncio.run(insert_listening_worker(database_url))
    assert horsies("doctor", "--database-url", database_url).code == 0


def test_doctor_creates_no_tables(horsies: Executable, empty_database_url: str) -> None:
    answer = horsies("doctor", "--json", "--database-url", empty_database_url)
    found = statuses(answer)
    assert (answer.code, found["schema"], found["listen"], found["workers"]) == (1, "fail", "ok", "skip")
    tables = "SELECT count(*) FROM pg_class WHERE starts_with(relname::text, 'horsies_')"
    assert asyncio.run(_value(empty_database_url, tables)) == 0


def test_doctor_reports_unreachable_server_once_without_password(horsies: Executable) -> None:
    answer = horsies("doctor", "--json", "--database-url", "postgresql://me:hunter2@127.0.0.1:1/db")
    found = statuses(answer)
    assert (answer.code, found["database"], found["schema"], found["config"]) == (1, "fail", "skip", "ok")
    assert "hunter2" not in answer.stdout + answer.stderr


def test_doctor_stops_at_invalid_settings(horsies: Executable) -> None:
    answer = horsies("doctor", "--json", HORSIES_RETENTION__BATCH_SIZE="1")
    found = statuses(answer)
    assert (answer.code, found["config"], found["database"]) == (1, "fail", "skip")


def test_doctor_does_not_start_the_embedded_server(embedded: Executable) -> None:
    answer = embedded("doctor", "--json")
    assert (answer.code, statuses(answer)["database"], statuses(answer)["embedded"]) == (0, "skip", "ok")
    url = embedded.environment["HORSIES_BROKER__DATABASE_URL"]
    as_text = embedded("doctor", "--database-url", url)
    assert [line.split()[0] for line in as_text.stdout.splitlines()[1:]] == ["config", "embedded"]
    assert "21 checks skipped: the embedded server is not running\n" in as_text.stderr
    assert f"hint: embedded: run: horsies db start --database-url {url}\n" in as_text.stderr
    assert embedded("db", "status").code == 7


@pytest.mark.parametrize("text", ["\x1b[31mred\x1b[0m", "[bold]bold[/bold]"])
def test_doctor_escapes_control_sequences(horsies: Executable, database_url: str, text: str) -> None:
    async def look() -> CommandResult:
        other = await asyncpg.connect(database_url, server_settings={"application_name": text})
        async with other.transaction():
            await other.fetch("SELECT 1")
            answer = await asyncio.to_thread(horsies, "doctor", "--database-url", database_url)
        await other.close()
        return answer

    answer = asyncio.run(look())
    assert "\x1b" not in answer.stdout
    assert "bold" in answer.stdout or "red" in answer.stdout


async def _value(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()
