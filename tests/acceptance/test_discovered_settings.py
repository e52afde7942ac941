"""A horsies.toml of another user is never used by accident: it names code that would run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horsies.config import load_settings
from horsies.errors import ConfigurationError
from tests.support.cli import Executable

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
OTHER_UID = 54321
SETTINGS = '[app]\nlocator = "planted:app"\n'
PLANTED = """
from pathlib import Path
from horsies import Horsies
Path(__file__).with_name("ran").touch()
app = Horsies()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with settings and an app that leaves a file when it is imported; returns a folder below it."""
    (tmp_path / "horsies.toml").write_text(SETTINGS)
    (tmp_path / "planted.py").write_text(PLANTED)
    below = tmp_path / "below"
    below.mkdir()
    return below


@as_root
@pytest.mark.parametrize("command", [("check",), ("sweep", "--dry-run"), ("task", "send", "x")])
def test_file_of_another_user_runs_nothing(project: Path, command: tuple[str, ...]) -> None:
    file = project.parent / "horsies.toml"
    os.chown(file, OTHER_UID, OTHER_UID)
    done = Executable(cwd=project)(*command)
    assert done.code == 1
    assert f"owned by another user (uid {OTHER_UID}, mode 0644)" in done.stderr
    assert f"--config {file}" in done.stderr
    assert not (project.parent / "ran").exists()


@as_root
def test_named_file_of_another_user_is_trusted(project: Path, database_url: str) -> None:
    file = project.parent / "horsies.toml"
    os.chown(file, OTHER_UID, OTHER_UID)
    done = Executable(cwd=project.parent)("check", "--config", str(file), "--database-url", database_url)
    assert done.code == 0, done.stderr
    by_variable = Executable(cwd=project.parent)("check", HORSIES_CONFIG=str(file), DATABASE_URL=database_url)
    assert by_variable.code == 0, by_variable.stderr


@pytest.mark.parametrize("name", ["horsies.toml", ""])
@pytest.mark.parametrize("mode", [0o666, 0o777, 0o1777])
def test_file_or_folder_that_others_may_write_is_refused(project: Path, name: str, mode: int) -> None:
    path = project.parent / name
    path.chmod(mode | (0o111 if path.is_dir() else 0))
    with pytest.raises(ConfigurationError, match="writable by other users"):
        load_settings(environ={}, cwd=project)


@as_root
def test_folder_of_another_user_is_refused(project: Path) -> None:
    os.chown(project.parent, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigurationError, match=f"because {project.parent} is owned by another user"):
        load_settings(environ={}, cwd=project)


def test_search_ends_at_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert load_settings(environ={}, cwd=project).file is None
    monkeypatch.setenv("HOME", str(project.parent))
    assert load_settings(environ={}, cwd=project).file == project.parent / "horsies.toml"


def test_search_ends_at_a_mount_point(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_mount(path: Path) -> bool:
        return path == project

    monkeypatch.setattr(os.path, "ismount", is_mount)
    assert load_settings(environ={}, cwd=project).file is None
