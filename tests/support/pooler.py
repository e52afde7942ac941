"""A real PgBouncer in transaction mode in front of a test database."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator

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
    """Yield the URL of `database_url` behind a pooler that shares `pool_size` server connections."""
    url = urlsplit(database_url)
    database = url.path.lstrip("/")
    with tempfile.TemporaryDirectory(prefix="horsies-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        port = _free_port()
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(
            _SETTINGS.format(database=database, socket=parse_qs(url.query)["host"][0], port=port, pool_size=pool_size)
        )
        # It refuses to run as root; the owner of the server's socket folder is the one who may enter it.
        owner = Path(parse_qs(url.query)["host"][0]).stat().st_uid
        process = subprocess.Popen(
            [str(PGBOUNCER), "-q", str(settings)],
            stderr=subprocess.PIPE,
            user=owner if os.geteuid() == 0 else None,
            text=True,
        )
        try:
            _wait_until_it_listens(process, port)
            yield f"postgresql://horsies@127.0.0.1:{port}/{database}"
        finally:
            process.terminate()
            process.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_it_listens(process: subprocess.Popen[str], port: int) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError(f"pgbouncer ended with {process.returncode}: {process.communicate()[1]}")
