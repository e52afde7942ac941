"""Make the project's environment: exact, hash-checked versions, then the project itself, editable.

Uses uv where it is installed, else venv and pip. Prints one line a step; the output of a step shows only when it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

OLDEST_PYTHON = (3, 11)


def main(venv: Path, lock: Path) -> None:
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(
            f"error: horsies needs Python 3.11 or newer, this is {sys.version.split()[0]}\nhint: make PYTHON=python3.11"
        )
    python = venv / "bin" / "python"
    uv = shutil.which("uv")
    make_venv, install = (
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
    step("environment", make_venv)
    step("packages", [*install, "--require-hashes", "-r", str(lock)])
    step("horsies", [*install, "--no-deps", "--no-build-isolation", "--editable", "."])
    (venv / ".ready").touch()


def step(name: str, command: list[str]) -> None:
    print(f"  set-up: {name} …", end="", flush=True, file=sys.stderr)
    began = time.monotonic()
    # The build of the project must see the environment's own hatchling, not the caller's.
    environment = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}error: set-up step {name!r} failed: {' '.join(command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
