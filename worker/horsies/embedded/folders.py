"""Making a cluster's folders, with nobody's permissions changed but our own."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from horsies.embedded.accounts import first_closed
from horsies.embedded.unavailable import ELSEWHERE, unavailable

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from horsies.embedded.accounts import Account

_OURS = {
    "data", "data.new", "socket", "log", "pg", "horsies.conf", "horsies.conf.new", "command.log",
    "start.lock", "users.lock", "kept",
}  # fmt: skip


def make_folder(folder: Path, account: Account) -> None:
    """Make the cluster's folder with its missing parents, such that the account can pass through them."""
    _make_with_parents(folder, mode=0o700 if account.is_ours else 0o711)
    if account.is_ours:
        return
    if first_closed(folder, account) == folder and _holds_only_ours(folder):
        folder.chmod(0o711)
    if closed := first_closed(folder, account):
        raise unavailable(
            f"the embedded server cannot live in {folder}: it runs as {account.name}, who may not enter {closed}",
            hint=ELSEWHERE,
        )


def make_private(folder: Path, account: Account) -> None:
    """Make a folder of the account alone; one that exists must be exactly that, whoever made it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not account.is_ours and folder.lstat().st_uid == os.geteuid():
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != account.uid or facts.st_mode & 0o077:
        raise unavailable(f"{folder} must be a folder of {account.name} alone (mode 0700)", hint=ELSEWHERE)


@contextmanager
def working_in(folder: Path) -> Generator[None]:
    """Turn the system's refusal into an error that names the folder and the ways round it."""
    try:
        yield
    except OSError as error:
        raise unavailable(f"the embedded server cannot use the folder {folder}: {error}", hint=ELSEWHERE) from error


def _make_with_parents(folder: Path, *, mode: int) -> None:
    if folder.is_dir():
        return
    _make_with_parents(folder.parent, mode=mode)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(mode)  # the umask had its say in mkdir


def _holds_only_ours(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= _OURS
