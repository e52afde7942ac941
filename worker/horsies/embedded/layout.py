"""Where the parts of one cluster lie.

<folder>/                 ours; as root others may pass through it, not list it (0711)
    data/                 the cluster (0700, owned by the server's account)
    data.new/             a cluster being made; never used, removed when found
    socket/               the server's socket, unless its path would be too long
    log/                  the server's log, a file a weekday
    horsies.conf          our settings, included by the cluster's postgresql.conf
    command.log           what the last PostgreSQL program said
    pg/                   a copy of the binaries, where the account cannot reach the originals
    start.lock users.lock kept
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from horsies.embedded.unavailable import unavailable

DATABASE = "horsies"
ROLE = "horsies"
PORT = 5432
_SOCKET = f".s.PGSQL.{PORT}"
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of the cluster in `folder`; looks at no file."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def data_in_the_making(self) -> Path:
        return self.folder / "data.new"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def conf(self) -> Path:
        return self.folder / "horsies.conf"

    @property
    def command_log(self) -> Path:
        return self.folder / "command.log"

    @property
    def copied_binaries(self) -> Path:
        return self.folder / "pg"

    @property
    def start_lock(self) -> Path:
        return self.folder / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.folder / "users.lock"

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    @property
    def socket_folder(self) -> Path:
        """`socket` in the folder, or a short path of its own where the kernel or a URL could not carry that one."""
        beside = self.folder / "socket"
        return beside if _is_usable(beside) else _short_folder(self.folder)

    @property
    def socket(self) -> Path:
        return self.socket_folder / _SOCKET

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    @property
    def socket_pid_file(self) -> Path:
        return self.socket_folder / f"{_SOCKET}.lock"

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self.socket_folder), safe='/')}"


_ADDRESS = re.compile(rf"postgresql://{ROLE}@/{DATABASE}\?host=/.*/(socket|horsies-[0-9a-f]{{16}})")


def is_address_of_embedded(url: str) -> bool:
    """Whether this is how a `Layout` writes an address; a server of somebody's own hardly has one like it."""
    return _ADDRESS.fullmatch(url) is not None


def _is_usable(folder: Path) -> bool:
    # A comma separates hosts in a URL, so a path with one would be read as two.
    return "," not in str(folder) and len(os.fsencode(folder / _SOCKET)) <= _SOCKET_PATH_LIMIT


def _short_folder(folder: Path) -> Path:
    name = f"horsies-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    # TMPDIR differs between processes that have to meet here, so it comes second.
    for parent in (Path("/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 - the folder is made private and checked
        if parent.is_dir() and _is_usable(parent / name):
            return parent / name
    raise unavailable(
        f"no folder for the server's socket: {folder} is too long a path for one, and so is {tempfile.gettempdir()}",
        hint="name a shorter folder with embedded:///dir, or set broker.database_url",
    )
