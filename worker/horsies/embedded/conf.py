"""The settings that the server runs with, written afresh at every start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horsies.embedded.layout import PORT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ALWAYS = {
    "cluster_name": "horsies",
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "../log",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_timezone": "UTC",
}
_HEADING = "# Written by horsies at every start; settings of your own go below the include in postgresql.conf.\n"
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


def settings_of(socket_folder: Path, *, durable: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """Ours, then the caller's on top."""
    durability = dict.fromkeys(_DURABILITY, "on" if durable else "off")
    return {**_ALWAYS, "unix_socket_directories": _as_list_item(str(socket_folder)), **durability, **extra}


def write_conf(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the file in one step; the server's account can read it."""
    lines = [f"{name} = '{_escaped(value)}'\n" for name, value in settings.items()]
    written = path.with_name(f"{path.name}.new")
    written.unlink(missing_ok=True)
    written.write_text(_HEADING + "".join(lines))
    written.chmod(0o644)
    written.replace(path)


def include_conf(data: Path, conf: Path) -> None:
    """Make a new cluster read `conf`, which lies beside it, wherever both are moved."""
    descriptor = os.open(data / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"\ninclude '../{conf.name}'\n")


def _as_list_item(path: str) -> str:
    doubled = path.replace('"', '""')
    return f'"{doubled}"'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
