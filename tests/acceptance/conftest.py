from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Executable


@pytest.fixture(autouse=True)
def _remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the TUI an empty state folder and no user themes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def horsies(tmp_path: Path) -> Executable:
    """The executable in an empty folder."""
    return Executable(cwd=tmp_path)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Executable]:
    """The executable with its own embedded server, which is stopped after the test."""
    folder = tempfile.mkdtemp(prefix="horsies-cli-")
    Path(folder).chmod(0o755)
    horsies = Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": f"embedded://{folder}/pg"})
    yield horsies
    horsies("db", "stop", "--force")
    shutil.rmtree(folder)


@pytest.fixture
def port() -> int:
    """A free TCP port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
