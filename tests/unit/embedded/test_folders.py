from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from horsies.embedded.binaries import ServerAccount, first_inaccessible
from horsies.embedded.layout import make_folder, make_private_folder
from horsies.errors import ConfigurationError

_OURSELVES = ServerAccount(name="ourselves", uid=os.geteuid(), gid=os.getegid())
_STRANGER = ServerAccount(name="stranger", uid=54321, gid=54321)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_missing_parents_are_created_and_existing_ones_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_folder(tmp_path / "a" / "b", _OURSELVES)
    assert [_mode(path) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [0o750, 0o700, 0o700]


def test_private_folder_may_already_exist(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "private", _OURSELVES)
    make_private_folder(tmp_path / "private", _OURSELVES)
    assert _mode(tmp_path / "private") == 0o700


def test_accessible_folder_is_not_private(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ConfigurationError, match="0700"):
        make_private_folder(tmp_path / "open", _OURSELVES)


def test_symlink_is_not_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="0700"):
        make_private_folder(tmp_path / "link", _OURSELVES)


def test_outermost_inaccessible_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert first_inaccessible(tmp_path / "closed" / "inner", _OURSELVES) is None
    assert first_inaccessible(tmp_path / "closed" / "inner", _STRANGER) in {
        tmp_path / "closed",
        *tmp_path.parents,
        tmp_path,
    }
