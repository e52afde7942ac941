from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from horsies.errors import BrokerError, ConfigurationError, ErrorCode
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.sweep import Sweep
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import SCHEMA, known_migrations, migrate, schema_state
from tests.support.rows import OPERATOR_OBSERVER

MIGRATE_ONCE = """
import asyncio, sys
from horsies.store.database import Database
from horsies.store.connection import ConnectionSpec
from horsies.store.migrate import migrate

async def main():
    async with Database(ConnectionSpec(url=sys.argv[1], masked_url="test")) as database:
        print(len(await migrate(database)))

asyncio.run(main())
"""

FILL_TABLES = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, started_at, last_heartbeat_at)
VALUES (gen_random_uuid(), 'here', 7, '1.0', 1, 'lost', now() - interval '1 day', now() - interval '1 day');
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, sent_at, enqueued_at, enqueue_sha, status, terminal_at,
                           claimed_at, started_at, claimed_by_worker_id, claim_token)
SELECT gen_random_uuid(), 'noop', 'default', 100, now(), now(), repeat('0', 64), status,
       CASE WHEN status NOT IN ('PENDING', 'RUNNING') THEN now() END,
       CASE WHEN status = 'RUNNING' THEN now() - interval '1 day' END,
       CASE WHEN status = 'RUNNING' THEN now() - interval '1 day' END,
       CASE WHEN status = 'RUNNING' THEN (SELECT id FROM horsies_workers) END, 1
  FROM unnest(ARRAY['PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED']) AS status;
INSERT INTO horsies_task_attempts (task_id, attempt, claim_token, outcome, started_at, finished_at)
SELECT id, 1, 1, 'COMPLETED', now(), now() FROM horsies_tasks WHERE status = 'COMPLETED';
INSERT INTO horsies_heartbeats (task_id, claim_token, role, sent_at, sender_id, hostname, pid)
SELECT id, 1, 'runner', started_at, claimed_by_worker_id, 'here', 7 FROM horsies_tasks WHERE status = 'RUNNING';
INSERT INTO horsies_worker_states (worker_id, worker_started_at, hostname, pid, processes, max_claim_batch,
                                   max_claim_per_worker, queues, tasks_running, tasks_claimed)
SELECT id, started_at, hostname, pid, 1, 1, 1, '{default}', 1, 0 FROM horsies_workers;
INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('default', now());
INSERT INTO horsies_schedule_state (schedule_name, config_hash, run_count) VALUES ('nightly', '1', 7);
INSERT INTO horsies_workflows (id, name, status, on_error, root_workflow_id, sent_at)
SELECT id, 'sums', status, 'fail', id, now()
  FROM (SELECT gen_random_uuid() AS id, status FROM unnest(ARRAY['RUNNING', 'PAUSED', 'COMPLETED']) AS status) AS runs;
INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, queue_name, priority, dependencies,
                                    status)
SELECT gen_random_uuid(), id, number, 'n' || number, 'noop', 'default', 100,
       CASE number WHEN 1 THEN ARRAY[0] ELSE '{}' END,
       CASE WHEN status = 'COMPLETED' OR number = 0 THEN 'COMPLETED' ELSE 'PENDING' END
  FROM horsies_workflows, generate_series(0, 1) AS number;
INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index)
SELECT gen_random_uuid(), id, 0 FROM horsies_workflows WHERE status = 'RUNNING';
INSERT INTO horsies_events (kind, task_id) SELECT 'task_recovered', id FROM horsies_tasks WHERE status = 'FAILED';
INSERT INTO horsies_audit (actor, host, action, via) VALUES ('ana', 'here', 'retry', 'cli');
"""
FILL_SCHEDULES = """
INSERT INTO horsies_task_catalog (catalog_hash, task_name, queue_name, max_retries) VALUES ('1', 'noop', 'default', 0);
INSERT INTO horsies_schedule_runs (schedule_name, slot_at, outcome, fired_at) VALUES ('nightly', now(), 'fired', now());
INSERT INTO horsies_schedule_participants (id, owner, names, hostname, pid)
VALUES (gen_random_uuid(), 'app', '{nightly}', 'here', 7);
"""
SCHEDULES_SINCE = 21
DROPPED = ("horsies_task_attempts", "created_at")
TABLES = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^horsies_' AND relname <> 'horsies_migrations'
"""


async def test_empty_database_gets_all_migrations_in_order(empty_database: Database) -> None:
    applied = await migrate(empty_database)

    state = await schema_state(empty_database)
    assert applied == known_migrations()
    assert [row.version for row in state.applied] == [m.version for m in known_migrations()]
    assert not state.pending


async def test_migrating_current_database_is_one_query(database: Database, database_url: str) -> None:
    await database.fetch(SCHEMA.server_version)
    sent: list[str] = []
    connection = await database._pool.acquire()
    connection.add_query_logger(lambda record: sent.append(record.query))
    database._pool.release(connection)
    assert await migrate(database) == ()
    await asyncio.sleep(0)  # the driver calls its loggers in the next loop iteration
    assert sent == [SCHEMA.applied_migrations.sql]


async def test_concurrent_processes_apply_each_migration_once(empty_database_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE_ONCE, empty_database_url, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(8)
    ]
    printed = await asyncio.gather(*(process.communicate() for process in processes))
    counts = sorted(int(stdout) for stdout, _ in printed)
    assert counts == [0] * 7 + [len(known_migrations())]


async def test_failing_migration_is_rolled_back(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*known_migrations(), replace(known_migrations()[-1], version=9000, name="broken", sql="SELECT no_such()"))
    monkeypatch.setattr("horsies.store.migrate.known_migrations", lambda: broken)
    with pytest.raises(BrokerError, match="no_such"):
        await migrate(empty_database)
    assert (await schema_state(empty_database)).applied == ()


@pytest.mark.parametrize("version", [10, known_migrations()[-2].version])
async def test_filled_database_of_an_older_schema_is_upgraded(
    empty_database: Database, empty_database_url: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    every, old = known_migrations(), tuple(m for m in known_migrations() if m.version <= version)
    monkeypatch.setattr("horsies.store.migrate.known_migrations", lambda: old)
    assert await migrate(empty_database) == old
    await _execute(empty_database_url, FILL_TABLES + (FILL_SCHEDULES if version >= SCHEDULES_SINCE else ""))
    tables = [row["relname"] for row in await _fetch(empty_database_url, TABLES)]
    before = [await _stored_values(empty_database_url, table) for table in tables]
    assert all(before), "a table without rows proves nothing"

    monkeypatch.setattr("horsies.store.migrate.known_migrations", lambda: every)
    assert await migrate(empty_database) == every[len(old) :]

    after = [await _stored_values(empty_database_url, table) for table in tables]
    for rows_before, rows in zip(before, after, strict=True):
        kept = [{name: row.get(name) for name in row_before} for row_before, row in zip(rows_before, rows, strict=True)]
        assert kept == rows_before
    # The task that was running is recovered in the new schema.
    report = await Sweep(empty_database, SweepOptions(force=True), observer=OPERATOR_OBSERVER).run()
    assert [(task.state, task.decision, task.applied) for task in report.tasks] == [("RUNNING", "fail", True)]


async def _stored_values(url: str, table: str) -> list[dict[str, Any]]:
    """All rows of a table, without the column that a migration drops."""
    rows = [dict(row) for row in await _fetch(url, f"SELECT * FROM {table} ORDER BY 1, 2")]
    return [{name: value for name, value in row.items() if (table, name) != DROPPED} for row in rows]


async def test_newer_database_is_rejected_with_a_hint(database: Database, database_url: str) -> None:
    await _execute(database_url, "INSERT INTO horsies_migrations (version, name, checksum) VALUES (9999, 'later', 'x')")
    with pytest.raises(ConfigurationError) as caught:
        await migrate(database)
    assert caught.value.code is ErrorCode.SCHEMA_NOT_MIGRATED
    assert "9999" in caught.value.message
    assert "upgrade horsies" in (caught.value.help_text or "")


async def test_changed_checksum_stops_migration(database: Database, database_url: str) -> None:
    await _execute(database_url, "UPDATE horsies_migrations SET checksum = 'other' WHERE version = 2")
    with pytest.raises(BrokerError, match="0002_workers was changed"):
        await migrate(database)


async def test_old_schema_error_names_the_migrate_command(empty_database: Database) -> None:
    with pytest.raises(ConfigurationError) as caught:
        (await schema_state(empty_database)).check_current()
    assert caught.value.code is ErrorCode.SCHEMA_NOT_MIGRATED
    assert caught.value.help_text == "run: horsies db migrate"


async def test_custom_schema_is_created_and_used(empty_database_url: str) -> None:
    spec = ConnectionSpec(url=empty_database_url, masked_url="test", schema="Odd name")
    async with Database(spec) as database:
        assert await migrate(database) == known_migrations()
    found = await _fetch(
        empty_database_url, "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'horsies%'"
    )
    assert [row["schemaname"] for row in found] == ["Odd name"]


async def test_hot_tables_are_vacuumed_early_or_have_room(database: Database, database_url: str) -> None:
    rows = await _fetch(
        database_url,
        "SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL AND relkind = 'r' ORDER BY 1",
    )
    expected = ["autovacuum_vacuum_scale_factor=0.01", "autovacuum_vacuum_insert_scale_factor=0.01"]
    assert [(row["relname"], row["reloptions"]) for row in rows] == [
        ("horsies_heartbeats", expected),
        ("horsies_tasks", expected),
        ("horsies_workflow_tasks", ["fillfactor=60"]),
    ]


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


async def _fetch(url: str, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()
