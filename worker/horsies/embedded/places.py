"""Where clusters live on this machine: ours by default, and those of others that can be seen from here."""

from __future__ import annotations

import os
import pwd
import unicodedata
from pathlib import Path

import platformdirs

from horsies.embedded.unavailable import ELSEWHERE, unavailable

_ROOTS_FOLDER = Path("/var/lib/horsies/embedded")
_UNUSABLE = {"Cc", "Cs"}  # control characters, and what bytes that are no UTF-8 are read as


def default_folder() -> Path:
    """The folder of the cluster that is used when no other is named."""
    # The account that root lends to the server cannot enter root's home.
    return _ROOTS_FOLDER if os.geteuid() == 0 else _users_folder()


def located(folder: Path | None) -> Path:
    """The one absolute path by which all users of a folder know it."""
    named = _checked(_expanded(folder or default_folder()))
    # Path.resolve raises in a circle of links; this leaves it to be refused by the system, by name, on first use.
    return _checked(Path(os.path.realpath(named)))


def other_clusters(folder: Path) -> list[Path]:
    """Clusters in the default places of root and of all users but the one in `folder`; closed homes stay unseen."""
    places = {_ROOTS_FOLDER, _users_folder(), *_folders_in_homes()} - {located(folder)}
    return sorted(place for place in places if _is_cluster(place))


def _expanded(folder: Path) -> Path:
    try:
        return folder.expanduser()
    except RuntimeError:
        raise unavailable(f"uid {os.geteuid()} has no home to keep an embedded server in") from None


def _checked(folder: Path) -> Path:
    """The folder, unless its name is one that PostgreSQL's own files or a URL could not carry."""
    if any(unicodedata.category(character) in _UNUSABLE for character in str(folder)):
        raise unavailable(
            f"the embedded server cannot use the folder {str(folder)!r}: it holds a control character or is not UTF-8",
            hint=ELSEWHERE,
        )
    return folder


def _users_folder() -> Path:
    return platformdirs.user_data_path("horsies") / "embedded"


def _folders_in_homes() -> set[Path]:
    try:
        below_home = _users_folder().relative_to(Path.home())
    except (ValueError, RuntimeError):  # XDG_DATA_HOME points elsewhere, or we have no home: no clue about others
        return set()
    return {Path(user.pw_dir) / below_home for user in pwd.getpwall()}


def _is_cluster(folder: Path) -> bool:
    try:
        return (folder / "data").is_dir()
    except OSError:
        return False
