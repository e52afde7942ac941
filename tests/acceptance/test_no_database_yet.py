"""Commands that only read do not create an embedded cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Executable


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="horsies-none-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize(
    "command", [("task", "list"), ("workers", "list"), ("queue", "list"), ("events",), ("workflow", "list"), ("audit",)]
)
def test_read_command_creates_no_cluster(folder: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    run = Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": f"embedded://{folder}/pg"})
    done = run(*command)
    assert done.code == 7
    assert f"there is no database yet in {folder}/pg" in done.stderr
    assert "horsies db start" in done.stderr
    assert list(folder.iterdir()) == []
