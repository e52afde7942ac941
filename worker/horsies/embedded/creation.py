"""Making a new cluster, all or nothing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from horsies.embedded.conf import include_conf
from horsies.embedded.folders import make_private
from horsies.embedded.layout import DATABASE, ROLE

if TYPE_CHECKING:
    from pathlib import Path

    from horsies.embedded.programs import Programs

_INITDB = (
    "--username", ROLE, "--encoding=UTF8", "--no-locale", "--data-checksums",
    "--auth-local=trust", "--auth-host=reject", "--no-sync",
)  # fmt: skip


def create_data(programs: Programs, *, durable: bool, lock: int) -> None:
    """Make the data folder with our database in it; it gets its name when it is complete and on disk.

    The programs hold the start lock, so that none of them can outlive a killed starter and write under the next one.
    """
    layout = programs.layout
    fresh = layout.data_in_the_making
    shutil.rmtree(fresh, ignore_errors=True)
    make_private(fresh, programs.account)
    programs.run("initdb", *_INITDB, data=fresh, holding=lock)
    _create_database(programs, fresh, lock)
    include_conf(fresh, layout.conf)
    if durable:
        programs.run("initdb", "--sync-only", data=fresh, holding=lock)
    fresh.rename(layout.data)
    if durable:
        _sync(layout.folder)


def _create_database(programs: Programs, data: Path, lock: int) -> None:
    # A stand-alone backend needs no client and no listening server.
    programs.run(
        "postgres", "--single", "-F", "-c", "exit_on_error=true", "postgres",
        stdin=f"CREATE DATABASE {DATABASE} OWNER {ROLE}\n", data=data, holding=lock,
    )  # fmt: skip


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
