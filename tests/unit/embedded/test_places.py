from __future__ import annotations

import os
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedServer, default_folder, other_clusters
from horsies.errors import ConfigurationError, ErrorCode


def test_default_folder_depends_on_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    expected = "/var/lib/horsies/embedded" if os.geteuid() == 0 else f"{tmp_path}/horsies/embedded"
    assert str(default_folder()) == expected
    assert EmbeddedServer().folder == default_folder().resolve()


def test_other_clusters_exclude_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    theirs = tmp_path / "horsies" / "embedded"
    assert theirs not in other_clusters(tmp_path / "ours")
    (theirs / "data").mkdir(parents=True)
    assert theirs in other_clusters(tmp_path / "ours")
    assert theirs not in other_clusters(theirs)


@pytest.mark.parametrize("name", ["two\nlines", "tab\t", "nul\0", "del\x7f", os.fsdecode(b"latin \xfc")])
def test_folder_with_control_characters_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="control character") as refusal:
        EmbeddedServer(tmp_path / name)
    assert refusal.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert refusal.value.message.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_symlink_to_a_folder_with_control_characters_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "two\nlines")
    with pytest.raises(ConfigurationError, match="control character"):
        EmbeddedServer(tmp_path / "link")


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["y" * 200] * 30), "file/cluster", "circle"])
def test_status_of_an_invalid_path_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ConfigurationError, match="cannot use the folder") as refusal:
        EmbeddedServer(tmp_path / name).status()
    assert refusal.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert str(tmp_path / name) in refusal.value.message


def test_invalid_path_is_no_other_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ("x" * 300)))
    assert not [place for place in other_clusters(tmp_path) if place.is_relative_to(tmp_path)]
