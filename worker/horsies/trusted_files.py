"""Files and folders that no other local user can have written or replaced: owned by this user or root, and writable
by nobody else."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

# O_PATH also opens folders that may be entered but not read, such as /home with mode 0711.
_SEARCH = os.O_PATH if sys.platform == "linux" else os.O_RDONLY
_FOLDER_FLAGS = _SEARCH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedFile(PermissionError):
    """Another user owns or may write a file or folder; the text names its owner and mode."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.filename} is {self.reason}"


def distrust_reason(
    status: os.stat_result, *, sticky_is_safe: bool = False, trusted_uid: int | None = None
) -> str | None:
    """Return why a file or folder with this status is not trusted, with owner and mode; None if it is.

    In a sticky folder, such as /tmp, others can add entries, but cannot replace ours. `trusted_uid` may own it too.
    """
    about = f"{user_name(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid not in (0, os.geteuid(), trusted_uid):
        return f"owned by another user ({about})"
    if sticky_is_safe and status.st_mode & stat.S_ISVTX:
        return None
    group_may_write = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid)
    if status.st_mode & stat.S_IWOTH or group_may_write:
        return f"writable by other users ({about})"
    return None


@contextmanager
def open_folder(folder: Path, *, create_mode: int | None = None) -> Generator[int]:
    """Yield a descriptor of the folder, after checking it and its parents; `create_mode` creates missing ones.

    `folder` is absolute and without symlinks. Every part is opened relative to its parent, so nothing can be exchanged
    between the check and the use.
    """
    descriptor = os.open("/", _FOLDER_FLAGS)
    try:
        path = Path("/")
        for part in folder.parts[1:]:
            _check(descriptor, path, sticky_is_safe=True)
            path /= part
            below = _open_part(part, descriptor, create_mode)
            os.close(descriptor)
            descriptor = below
        _check(descriptor, folder, sticky_is_safe=False)
        yield descriptor
    finally:
        os.close(descriptor)


def check_symlinks(path: Path) -> None:
    """Raise UntrustedFile if a part of the absolute path is a symlink of another user."""
    for part in (*reversed(path.parents), path):
        status = part.lstat() if part.is_symlink() else None
        if status is not None and status.st_uid not in (0, os.geteuid()):
            raise UntrustedFile(part, f"a symlink of another user ({user_name(status.st_uid)})")


def read_small_file(path: Path, *, limit: int = 1 << 16) -> str:
    """Return the end of a regular file, at most `limit` bytes; never follows a symlink or waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFile(path, "not a regular file")
        return os.pread(descriptor, limit, max(0, status.st_size - limit)).decode(errors="replace")
    finally:
        os.close(descriptor)


def user_name(uid: int) -> str:
    """Return the name and number of a user."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check(descriptor: int, path: Path, *, sticky_is_safe: bool) -> None:
    if reason := distrust_reason(os.fstat(descriptor), sticky_is_safe=sticky_is_safe):
        raise UntrustedFile(path, reason)


def _open_part(name: str, parent: int, create_mode: int | None) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if create_mode is None:
            raise
    with suppress(FileExistsError):  # another process was faster
        os.mkdir(name, create_mode, dir_fd=parent)
        os.chmod(name, create_mode, dir_fd=parent)  # mkdir applied the umask
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _is_private_group(gid: int) -> bool:
    """Whether only this user and root are members, as in the groups that many systems create for each user."""
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return False
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    trusted = {user.pw_name for user in pwd.getpwall() if user.pw_uid in (0, os.geteuid())}
    return members <= trusted
