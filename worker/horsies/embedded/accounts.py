"""Which operating-system user the server runs as.

PostgreSQL refuses to run as root and initdb refuses a uid without a name, so root lends the server an account that
exists already; no account is ever created.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.embedded.unavailable import unavailable

if TYPE_CHECKING:
    from pathlib import Path

_LENT_BY_ROOT = ("postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user that owns a cluster's data and runs its server."""

    name: str
    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()


def server_account(data: Path) -> Account:
    """Ourselves; as root the owner of the data, or else the first of `postgres` and `nobody` that exists."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _account(owner)
    return _lent_account()


def first_closed(path: Path, account: Account) -> Path | None:
    """The outermost folder on the way into `path` that the account may not enter."""
    return next((folder for folder in (*reversed(path.parents), path) if not _may_enter(folder, account)), None)


def _may_enter(folder: Path, account: Account) -> bool:
    facts = folder.stat()
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid == account.gid:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


def _account(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise unavailable(
            f"uid {uid} has no name on this machine, and PostgreSQL does not run as such a user"
        ) from None
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def _lent_account() -> Account:
    for name in _LENT_BY_ROOT:
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise unavailable("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
