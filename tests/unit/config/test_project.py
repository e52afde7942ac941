"""Which folder has the embedded database of a project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horsies.config import load_settings
from horsies.config.project import database_folder
from horsies.errors import ConfigurationError
from horsies.model.settings.broker import DatabaseUrl

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
OTHER_UID = 54321


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the folders of an ordinary user."""
    monkeypatch.setattr("horsies.config.project.os.geteuid", lambda: 1000)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with code two folders below it."""
    (tmp_path / "project" / "src" / "shop").mkdir(parents=True)
    (tmp_path / "project" / "src" / "shop" / "app.py").touch()
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "project"


def _url(cwd: Path, code: Path | None = None, **environ: str) -> DatabaseUrl:
    return load_settings(cwd=cwd, code=code, environ=environ).app.broker.database_url


def test_database_is_beside_the_settings_file(project: Path) -> None:
    (project / "horsies.toml").touch()
    app = project / "src" / "shop" / "app.py"
    folders = [project, project / "src", project.parent / "elsewhere"]
    urls = [_url(cwd, app) for cwd in folders]
    assert {url.embedded_folder for url in urls} == {project / ".horsies"}
    assert {url.project for url in urls} == {project}
    assert _url(project / "src").embedded_folder == project / ".horsies"


def test_settings_of_another_project_do_not_count(project: Path) -> None:
    app, other = project / "src" / "shop" / "app.py", project.parent / "elsewhere"
    (project / "horsies.toml").touch()
    (other / "horsies.toml").touch()
    assert _url(other, app).embedded_folder == project / ".horsies"
    (project / "src" / "horsies.toml").touch()  # nearer to the working folder, and in the same project
    assert _url(project / "src", app).embedded_folder == project / "src" / ".horsies"


def test_database_is_beside_the_app_without_settings_file(project: Path) -> None:
    app = project / "src" / "shop" / "app.py"
    for cwd in (project, project / "src", project.parent / "elsewhere"):
        assert _url(cwd, app).embedded_folder == app.parent / ".horsies"


def test_command_finds_the_nearest_database(project: Path) -> None:
    assert _url(project / "src").embedded_folder is None
    (project / ".horsies").mkdir()
    assert _url(project / "src" / "shop").embedded_folder == project / ".horsies"
    (project / "src" / ".horsies").mkdir()
    assert _url(project / "src" / "shop").embedded_folder == project / "src" / ".horsies"


def test_settings_file_wins_over_a_nearer_database(project: Path) -> None:
    (project / "horsies.toml").touch()
    (project / "src" / ".horsies").mkdir()
    app = project / "src" / "shop" / "app.py"
    assert _url(project / "src", app) == _url(project / "src")
    assert _url(project / "src").embedded_folder == project / ".horsies"


def test_search_for_a_database_ends_at_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".horsies").mkdir()
    monkeypatch.setenv("HOME", str(project / "src"))
    assert _url(project / "src" / "shop").embedded_folder is None


def test_named_settings_file_has_the_database_beside_it(project: Path) -> None:
    (project / "other.toml").touch()
    elsewhere = project.parent / "elsewhere"
    url = load_settings(project / "other.toml", cwd=elsewhere, environ={}).app.broker.database_url
    assert url.embedded_folder == project / ".horsies"


def test_symlink_to_a_project_is_the_same_project(project: Path) -> None:
    (project / "horsies.toml").touch()
    link = project.parent / "link"
    link.symlink_to(project)
    assert _url(link) == _url(project)


@pytest.mark.parametrize("url", ["embedded:///srv/db", "postgresql://h/db"])
def test_named_database_is_used_in_every_project(project: Path, url: str) -> None:
    (project / "horsies.toml").touch()
    used = _url(project, HORSIES_BROKER__DATABASE_URL=url)
    assert (used.reveal(), used.project) == (url, None)


def test_installed_app_has_no_database_of_its_own(project: Path) -> None:
    app = project / "lib" / "site-packages" / "shop.py"
    app.parent.mkdir(parents=True)
    app.touch()
    assert _url(project, app).embedded_folder is None


def test_folder_name_that_is_not_utf8_is_kept(project: Path) -> None:
    odd = project / os.fsdecode(b"caf\xe9 100%")
    odd.mkdir()
    (odd / "horsies.toml").touch()
    assert _url(odd).embedded_folder == odd / ".horsies"


def test_settings_beside_the_app_are_read_from_everywhere(project: Path) -> None:
    (project / "horsies.toml").write_text('[broker]\ndatabase_url = "postgresql://h/db"\n')
    app = project / "src" / "shop" / "app.py"
    assert _url(project.parent / "elsewhere", app).reveal() == "postgresql://h/db"


def test_root_keeps_data_in_a_folder_of_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horsies.config.project.os.geteuid", lambda: 0)
    (project / "horsies.toml").touch()
    folder = _url(project / "src").embedded_folder
    assert folder is not None
    assert folder == database_folder(project)
    assert folder.parent == Path("/var/lib/horsies")
    assert folder != database_folder(project / "src")


@as_root
def test_settings_above_the_app_must_belong_to_its_owner(project: Path) -> None:
    file, app = project / "horsies.toml", project / "src" / "shop" / "app.py"
    file.touch()
    for path in (file, project, app):
        os.chown(path, OTHER_UID, OTHER_UID)
    assert load_settings(cwd=project.parent / "elsewhere", code=app, environ={}).file == file
    os.chown(app, 0, 0)
    with pytest.raises(ConfigurationError, match="owned by another user"):
        load_settings(cwd=project.parent / "elsewhere", code=app, environ={})
