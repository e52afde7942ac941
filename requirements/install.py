"""Creates the development environment: hash-checked packages from the lock file, then the project in editable mode.

Uses uv if it is installed, otherwise venv and pip. Prints one line per step; a step's output is shown only if it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIN_PYTHON = (3, 11)


def main(venv: Path, lock: Path) -> None:
    if sys.version_info < MIN_PYTHON:
        sys.exit(
            f"error: horsies needs Python 3.11 or newer, this is {sys.version.split()[0]}\nhint: make PYTHON=python3.11"
        )
    python = venv / "bin" / "python"
    uv = shutil.which("uv")
    create_venv, install = (
        (
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(venv)],
            [uv, "pip", "install", "--python", str(python)],
        )
        if uv
        else (
            [sys.executable, "-m", "venv", str(venv)],
            [str(python), "-m", "pip", "install", "--disable-pip-version-check"],
        )
    )
    step("environment", create_venv)
    step("packages", [*install, "--require-hashes", "-r", str(lock)])
    step("horsies", [*install, "--no-deps", "--no-build-isolation", "--editable", "."])
    (venv / ".ready").touch()


def step(name: str, command: list[str]) -> None:
    print(f"  set-up: {name} …", end="", flush=True, file=sys.stderr)
    started = time.monotonic()
    # The build must use hatchling of the new environment, not of the caller's.
    environment = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)
    if result.returncode:
        sys.exit(f"{result.stdout}{result.stderr}error: set-up step {name!r} failed: {' '.join(command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
