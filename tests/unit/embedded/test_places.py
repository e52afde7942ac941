from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horsies.embedded import EmbeddedServer, default_folder, other_clusters

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_default_folder_is_under_the_users_data_or_for_root_under_var_lib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    expected = "/var/lib/horsies/embedded" if os.geteuid() == 0 else f"{tmp_path}/horsies/embedded"
    assert str(default_folder()) == expected
    assert EmbeddedServer().folder == default_folder().resolve()


def test_another_cluster_is_seen_and_our_own_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    theirs = tmp_path / "horsies" / "embedded"
    assert theirs not in other_clusters(tmp_path / "ours")
    (theirs / "data").mkdir(parents=True)
    assert theirs in other_clusters(tmp_path / "ours")
    assert theirs not in other_clusters(theirs)
