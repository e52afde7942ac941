"""The built wheel in a fresh environment, outside the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Executable

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed() -> Iterator[Executable]:
    """The executable installed from the wheel; dependencies come from the running environment."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-wheel-"))
    folder.chmod(0o755)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    venv.create(folder / "fresh")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "fresh"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, *map(str, folder.glob("*.whl"))], check=True, capture_output=True)
    # A path file adds the packages of this environment, but not its editable horsies.
    (site,) = (folder / "fresh" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    environment = {"HORSIES_BROKER__DATABASE_URL": f"embedded://{folder}/pg"}
    horsies = Executable(cwd=folder, environment=environment, program=(str(folder / "fresh" / "bin" / "horsies"),))
    yield horsies
    horsies("db", "stop", "--force")
    shutil.rmtree(folder)


def run_python(installed: Executable, code: str) -> subprocess.CompletedProcess[str]:
    python = Path(installed.program[0]).with_name("python")
    return subprocess.run([str(python), "-c", code], cwd=installed.cwd, capture_output=True, text=True)


def test_wheel_packages_are_installed_and_typed(installed: Executable) -> None:
    for package in ("horsies", "horsies_ops", "horsies_tui"):
        typed = f"pathlib.Path({package}.__file__).with_name('py.typed').resolve(strict=True)"
        code = f"import {package}, pathlib; print({typed})"
        assert run_python(installed, code).stdout.startswith(str(installed.cwd.resolve()))


@pytest.mark.parametrize("name", ["worker", "tui", "tests"])
def test_wheel_installs_no_colliding_top_level_names(installed: Executable, name: str) -> None:
    assert "ModuleNotFoundError" in run_python(installed, f"import {name}").stderr


def test_database_commands_work_from_the_wheel(installed: Executable) -> None:
    assert installed("db", "start").code == 0
    assert "applied 0001_tasks" in installed("db", "migrate").stdout
    assert installed("db", "status", "--json").document["migrations"]["checksums_ok"]
    assert installed("db", "stop").code == 0


def test_example_runs_from_the_wheel(installed: Executable) -> None:
    shutil.copy(REPOSITORY / "horsies.toml.example", installed.cwd / "horsies.toml")
    with installed.start("worker", "--config", "horsies.toml") as worker:
        worker.wait_for_output("worker started")
        sent = installed("task", "send", "sample.send_email", "--args", '["me@here", "hello"]', "--wait", "--json")
        assert (sent.code, worker.stop()) == (0, 0), sent
