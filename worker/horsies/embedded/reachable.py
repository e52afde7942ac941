"""Binaries that the server's account can run, copied when the originals lie behind a closed folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from horsies.embedded.accounts import first_closed

if TYPE_CHECKING:
    from pathlib import Path

    from horsies.embedded.accounts import Account
    from horsies.embedded.binaries import Binaries

_NOT_NEEDED_TO_RUN = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")


def reachable(binaries: Binaries, account: Account, copy: Path) -> Binaries:
    """The same binaries, or their copy in the folder `copy`; nobody else's permissions are changed for it."""
    if account.is_ours or first_closed(binaries.bindir, account) is None:
        return binaries
    installation = binaries.bindir.parent
    copied = copy / installation.parent.name / installation.name
    stamp = f"{binaries.version} from {installation}\n"
    if not _is_stamped(copy, stamp):
        _copy(installation, copy, stamp)
    return replace(binaries, bindir=copied / binaries.bindir.name, origin=f"copy of {installation}")


def _is_stamped(copy: Path, stamp: str) -> bool:
    try:
        return (copy / "origin").read_text() == stamp
    except FileNotFoundError:
        return False


def _copy(installation: Path, copy: Path, stamp: str) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    package = installation.parent
    # The wheel's programs look for their libraries in this sibling, by a path relative to themselves.
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=_NOT_NEEDED_TO_RUN)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    _open_to_all(copy)
    (copy / "origin").write_text(stamp)


def _open_to_all(folder: Path) -> None:
    """Let everybody read and run what the owner may."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            owners = path.stat().st_mode & 0o700
            path.chmod(owners | (owners & 0o500) >> 3 | (owners & 0o500) >> 6)
