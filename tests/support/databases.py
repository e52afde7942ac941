"""Test databases: the cluster of a test run, embedded servers in other processes, PgBouncer, and the schema dump."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil

from horsies.embedded import EmbeddedServer, find_binaries
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import migrate

SHARED_MEMORY = Path("/dev/shm")  # Linux
MIN_FREE_BYTES = 4 * 2**30
CLUSTER_FOLDER = "HORSIES_TEST_CLUSTER"
TEMPLATE = "horsies_template"


def shared_memory_folder() -> Path | None:
    """The in-memory file system, if it has enough space for a test run; None means the default folder.

    A test database consists of about 300 files: 30 ms in memory, up to a second on a slow disk.
    """
    has_space = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= MIN_FREE_BYTES
    return SHARED_MEMORY if has_space else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The PostgreSQL server of a test run, with temporary databases."""

    url: str

    @classmethod
    @contextmanager
    def in_this_run(cls) -> Generator[Cluster]:
        """Start or join the server of this test run; the last process to leave stops it."""
        folder = Path(os.environ[CLUSTER_FOLDER])
        # No autovacuum: it runs at random times, and tests that count transactions would be flaky.
        settings = {"max_connections": "300", "autovacuum_naptime": "1d"}
        server = EmbeddedServer(folder / "pg", durable=False, settings=settings)
        with server.use() as handle:
            cluster = cls(handle.url)
            with (folder / "template.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                asyncio.run(cluster._make_template())
            yield cluster

    def url_of(self, name: str) -> str:
        head, query = self.url.split("?")
        return f"{head.rsplit('/', 1)[0]}/{name}?{query}"

    @contextmanager
    def database(self, *, migrated: bool) -> Generator[str]:
        name = f"test_{uuid.uuid4().hex}"
        template = TEMPLATE if migrated else "template0"
        # For a small template, copying files is three times as fast as the default strategy.
        self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self.url_of(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def role(self, database_url: str, *statements: str) -> Generator[str]:
        """Yield the URL of a database for a new role, which has what `statements` grant to `{role}`."""
        name = f"role_{uuid.uuid4().hex}"
        self.run(f"CREATE ROLE {name} LOGIN")
        for statement in statements:
            asyncio.run(self._run(statement.format(role=name), database_url))
        try:
            yield database_url.replace("horsies@", f"{name}@", 1)
        finally:
            asyncio.run(self._run(f"DROP OWNED BY {name} CASCADE", database_url))
            self.run(f"DROP ROLE {name}")

    def run(self, sql: str, database_url: str | None = None) -> None:
        """Run administrative statements."""
        asyncio.run(self._run(sql, database_url))

    async def _run(self, sql: str, database_url: str | None = None) -> None:
        connection = await asyncpg.connect(database_url or self.url)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def _make_template(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            if await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", TEMPLATE):
                return
            await connection.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        finally:
            await connection.close()
        url = self.url_of(TEMPLATE)
        async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
            await migrate(database)


# Embedded servers in their own folders, used by other processes

NOBODY = 65534

# Imports come before the change of user, who may not be allowed to read the interpreter's folder.
_PRELUDE = """
import json, os, sys, pathlib, psutil
from horsies.embedded import EmbeddedServer
folder, uid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if uid != os.geteuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
def say(**facts):
    print(json.dumps(facts), flush=True)
server = EmbeddedServer(folder, durable=False)
"""
_CLIENT = """
with server.use() as handle:
    say(started=handle.started, pid=server.status().pid)
    sys.stdin.readline()
"""


@contextmanager
def temporary_cluster_folder() -> Generator[Path]:
    """A folder that any user may enter; a server in it is stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-embedded-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        EmbeddedServer(folder).stop(force=True)
        shutil.rmtree(folder)


def run_script(script: str, folder: Path, *, uid: int | None = None) -> list[dict[str, Any]]:
    """Run a script with `server` in `folder` in another process and return the JSON lines it prints."""
    process = start_script(script, folder, uid=uid)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return [json.loads(line) for line in output.splitlines()]


def start_script(script: str, folder: Path, *, uid: int | None = None) -> subprocess.Popen[str]:
    user = str(os.geteuid() if uid is None else uid)
    command = [sys.executable, "-c", _PRELUDE + script, str(folder), user]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class ServerUser:
    """Another process that uses the server until `leave` or `kill`."""

    def __init__(self, folder: Path) -> None:
        self._process = start_script(_CLIENT, folder)

    def joined(self) -> dict[str, Any]:
        """Wait until it uses the server; returns whether it started it, and the server's pid."""
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def leave(self) -> None:
        self._process.communicate("leave\n")
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def server_log(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((folder / "log").iterdir()))


def wait_until(condition: Callable[[], bool], *, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {limit_s} s"
        os.sched_yield()


def server_process(server: EmbeddedServer) -> psutil.Process:
    pid = server.status().pid
    assert pid is not None
    return psutil.Process(pid)


# PgBouncer in transaction mode

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

_SETTINGS = """
[databases]
{database} = host={socket} dbname={database} user=horsies
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pgbouncer(database_url: str, *, pool_size: int) -> Generator[str]:
    """Yield a URL for `database_url` through a pooler with `pool_size` server connections."""
    url = urlsplit(database_url)
    database = url.path.lstrip("/")
    with tempfile.TemporaryDirectory(prefix="horsies-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        port = _free_port()
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(
            _SETTINGS.format(database=database, socket=parse_qs(url.query)["host"][0], port=port, pool_size=pool_size)
        )
        # PgBouncer refuses to run as root; run it as the owner of the server's socket folder, who has access to it.
        owner = Path(parse_qs(url.query)["host"][0]).stat().st_uid
        process = subprocess.Popen(
            [str(PGBOUNCER), "-q", str(settings)],
            stderr=subprocess.PIPE,
            user=owner if os.geteuid() == 0 else None,
            text=True,
        )
        try:
            _wait_until_listening(process, port)
            yield f"postgresql://horsies@127.0.0.1:{port}/{database}"
        finally:
            process.terminate()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_listening(process: subprocess.Popen[str], port: int) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError(f"pgbouncer exited with {process.returncode}: {process.communicate()[1]}")


# The schema as pg_dump writes it, without lines that differ between runs. `python -m tests.support.databases` writes
# docs/schema.sql.

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema.sql"
PG_DUMP_VERSION = 18
_HEADER = "-- The schema after all migrations, as pg_dump writes it. Made by `make schema`; a test compares it.\n\n"
_VARYING_LINES = re.compile(
    r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*|(CREATE|COMMENT ON) SCHEMA public.*)\n",
    re.MULTILINE,
)


def dump_schema(database_url: str) -> str:
    pg_dump = find_binaries(PG_DUMP_VERSION).bindir / "pg_dump"
    options = ["--schema-only", "--no-owner", "--no-privileges", "--schema=public", "--dbname", database_url]
    done = subprocess.run([pg_dump, *options], capture_output=True, text=True, check=True)
    text = _VARYING_LINES.sub("", done.stdout)
    return _HEADER + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="horsies-schema-") as folder:
        Path(folder).chmod(0o755)
        os.environ[CLUSTER_FOLDER] = folder
        with Cluster.in_this_run() as cluster, cluster.database(migrated=True) as url:
            SCHEMA_FILE.write_text(dump_schema(url))
    sys.stderr.write(f"wrote {SCHEMA_FILE.name}\n")


if __name__ == "__main__":
    main()
