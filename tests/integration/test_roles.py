"""Each kind of process works with the role that `horsies db roles --print` creates for it, and can do no more."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

import horsies_ops
from horsies.model.recovery.fleet import SweepOptions
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import migrate, schema_state
from horsies_ops.roles import KINDS, TABLES, RoleScript
from tests.support.cli import Executable, examples_of
from tests.support.databases import Cluster
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.rows import HOUR, insert_finished_task, insert_old_worker, insert_owned_task, insert_task
from tests.support.workers import worker_in_process

FORGED = """
INSERT INTO horsies_tasks (id, task_name, sent_at, enqueue_sha, {column})
VALUES (gen_random_uuid(), 'forged', now(), '', {value})
"""


@dataclass(frozen=True, slots=True)
class Roles:
    database_url: str
    prefix: str

    def url(self, kind: str) -> str:
        return self.database_url.replace("horsies@", f"{self.prefix}_{kind}@", 1)


@pytest.fixture
def roles(cluster: Cluster, database_url: str) -> Iterator[Roles]:
    script = RoleScript(schema="public", prefix=f"h{uuid.uuid4().hex[:12]}")
    cluster.run(str(script), database_url)
    yield Roles(database_url, script.prefix)
    for kind in KINDS:
        cluster.run(f"REASSIGN OWNED BY {script.role(kind)} TO horsies", database_url)
        cluster.run(f"DROP OWNED BY {script.role(kind)}", database_url)
        cluster.run(f"DROP ROLE {script.role(kind)}")


async def test_script_names_every_table_and_view(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    found = await connection.fetch(
        "SELECT relname::text FROM pg_class WHERE starts_with(relname::text, 'horsies_') AND relkind IN ('r', 'v')"
    )
    await connection.close()
    assert {row[0] for row in found} == set(TABLES)


def test_script_can_be_run_again(cluster: Cluster, roles: Roles) -> None:
    cluster.run(str(RoleScript(schema="public", prefix=roles.prefix)), roles.database_url)


def test_command_prints_the_script(roles: Roles, tmp_path: Path) -> None:
    run = Executable(cwd=tmp_path)
    printed = run("db", "roles", "--print", "--prefix", roles.prefix)
    assert printed.stdout == str(RoleScript(schema="public", prefix=roles.prefix))
    assert run("db", "roles").code == 2


async def test_viewer_reads_everything_and_changes_nothing(roles: Roles) -> None:
    task_id = await insert_task(roles.database_url)
    async with horsies_ops.connect(roles.url("viewer")) as ops:
        assert await ops.task(task_id) is not None
        await ops.list_queues()
        await ops.sweep(SweepOptions(dry_run=True))
    connection = await asyncpg.connect(roles.url("viewer"))
    for table in TABLES:
        for change in (f"DELETE FROM {table}", f"INSERT INTO {table} DEFAULT VALUES"):
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
                await connection.execute(change)
    await connection.close()


@pytest.mark.parametrize(
    "command",
    [("cleanup", "--dry-run"), ("task", "cancel", "--filter", "status:PENDING", "--dry-run"), ("sweep", "--dry-run")],
)
def test_dry_runs_work_for_a_viewer(roles: Roles, tmp_path: Path, command: tuple[str, ...]) -> None:
    asyncio.run(insert_task(roles.database_url))
    done = Executable(cwd=tmp_path)(*command, "--database-url", roles.url("viewer"))
    assert done.code == 0, done.stderr


async def test_producer_sends_and_reads_results(roles: Roles) -> None:
    app = ledger_app(roles.url("producer"))
    sent = (await app.tasks["work"].send_async()).unwrap()
    keyed = app.tasks["work"].with_options(idempotency_key="once")
    assert (await keyed.send_async()).unwrap().task_id == (await keyed.send_async()).unwrap().task_id
    info = (await sent.info_async()).unwrap()
    assert info is not None
    assert info.status == "PENDING"
    await app.close_async()


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "'RUNNING'"), ("status", "'PENDING'"), ("claim_token", "1"), ("result", "'{}'"), ("context", "'{}'")],
)
async def test_producer_cannot_store_another_state(roles: Roles, column: str, value: str) -> None:
    connection = await asyncpg.connect(roles.url("producer"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(FORGED.format(column=column, value=value))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("UPDATE horsies_tasks SET priority = 1")
    await connection.close()


async def test_worker_runs_recovers_and_cleans(roles: Roles) -> None:
    await insert_finished_task(roles.database_url, age=2000 * HOUR)
    gone = await insert_old_worker(roles.database_url, state="stopped", age=HOUR)
    lost = await insert_owned_task(roles.database_url, "RUNNING", owner=gone, silent_s=9_000)
    async with Ledger.open(roles.database_url) as ledger:
        await ledger.fetch("GRANT ALL ON ledger TO PUBLIC")
        async with worker_in_process(roles.url("worker")) as worker:
            sent = await worker.send("work")
            assert (await ledger.until_terminal(sent))[sent]["status"] == "COMPLETED"
            assert (await ledger.until_terminal(str(lost)))[str(lost)]["status"] == "FAILED"
        assert worker.health.disabled_jobs == {}


async def test_operator_acts_and_is_named_in_the_audit_log(roles: Roles) -> None:
    task_id = await insert_task(roles.database_url)
    await insert_finished_task(roles.database_url, age=20_000 * HOUR)
    async with horsies_ops.connect(roles.url("operator")) as ops:
        assert (await ops.cancel([task_id])).affected == 1
        assert (await ops.retry([task_id])).affected == 1
        await ops.pause_queue("default")
        await ops.resume_queue("default")
        await ops.sweep()
        assert (await ops.cleanup()).affected == 1
    connection = await asyncpg.connect(roles.database_url)
    rows = await connection.fetch("SELECT DISTINCT db_role FROM horsies_audit")
    await connection.close()
    assert [row[0] for row in rows] == [f"{roles.prefix}_operator"]


async def test_operator_cannot_choose_the_role_in_the_audit_log(roles: Roles) -> None:
    connection = await asyncpg.connect(roles.url("operator"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(
            "INSERT INTO horsies_audit (actor, host, action, via, db_role) VALUES ('a', 'h', 'x', 'cli', 'postgres')"
        )
    await connection.close()


async def test_migrator_owns_every_object(roles: Roles) -> None:
    connection = await asyncpg.connect(roles.database_url)
    owners = await connection.fetch("""
        SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE starts_with(relname::text, 'horsies_')
         UNION SELECT pg_get_userbyid(proowner)::text FROM pg_proc WHERE starts_with(proname::text, 'horsies_')
         UNION SELECT pg_get_userbyid(typowner)::text FROM pg_type WHERE starts_with(typname::text, 'horsies_')""")
    await connection.close()
    assert [row[0] for row in owners] == [f"{roles.prefix}_migrator"]


def test_migrator_creates_the_tables_in_a_schema_of_its_own(cluster: Cluster, empty_database_url: str) -> None:
    async def migrated(url: str) -> bool:
        async with Database(ConnectionSpec(url=url, masked_url="test", schema="own")) as database:
            await migrate(database)
            return not (await schema_state(database)).pending

    with cluster.role(empty_database_url, "CREATE SCHEMA own AUTHORIZATION {role}") as url:
        assert asyncio.run(migrated(url))


async def test_producer_with_workflow_grants_starts_a_workflow(roles: Roles) -> None:
    script = str(RoleScript(schema="public", prefix=roles.prefix))
    extra = [line.removeprefix("-- ") for line in script.splitlines() if line.startswith("-- GRANT")]
    assert len(extra) == 4
    connection = await asyncpg.connect(roles.database_url)
    await connection.execute("\n".join(extra))
    await connection.close()
    app = ledger_app(roles.url("producer"))
    spec = app.workflow(name="one", definition_key="one.v1", tasks=[app.tasks["work"].node()()])
    handle = (await spec.start_async()).unwrap()
    assert (await handle.status_async()).unwrap() == "RUNNING"
    await app.close_async()


async def test_documented_archive_keeps_what_an_operator_deletes(roles: Roles) -> None:
    [archive] = [
        example.text for example in examples_of("docs/security.md", language="sql") if "archive" in example.text
    ]
    owner = await asyncpg.connect(roles.database_url)
    await owner.execute(archive)
    async with horsies_ops.connect(roles.url("operator")) as ops:
        await ops.pause_queue("default")
    operator = await asyncpg.connect(roles.url("operator"))
    await operator.execute("DELETE FROM horsies_audit")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await operator.execute("DELETE FROM horsies_archive.audit")
    await operator.close()
    copies = await owner.fetch("SELECT db_role, entry ->> 'action' AS action FROM horsies_archive.audit")
    await owner.close()
    assert [tuple(copy) for copy in copies] == [(f"{roles.prefix}_operator", "pause_queue")] * 2
