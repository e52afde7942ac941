"""Where the demo happens: a folder with settings and an embedded server, and workers as processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tomli_w

if TYPE_CHECKING:
    from collections.abc import Generator

    from horsies.config import LoadedSettings

STOP_WITHIN_S: Final = 15.0
OF_OURS: Final = ("HORSIES_", "DATABASE_URL")

# As quick as the settings allow, so that a killed worker is missed while somebody is still looking.
RECOVERY: Final = {
    "check_interval_ms": 1000,
    "runner_heartbeat_interval_ms": 1000,
    "claimer_heartbeat_interval_ms": 1000,
    "running_stale_threshold_ms": 4000,
    "claimed_stale_threshold_ms": 3000,
    "worker_stale_threshold_ms": 4000,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder of the demo's own; whatever settings its user has do not count."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "horsies.toml"

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(OF_OURS)}

    def settings(self) -> LoadedSettings:
        """The settings of the demo, in this process from now on."""
        from horsies.config import load

        for name in [name for name in os.environ if name.startswith(OF_OURS)]:
            del os.environ[name]
        os.environ["HORSIES_CONFIG"] = str(self.config)
        return load(self.config)

    @contextmanager
    def worker(self, *, processes: int) -> Generator[subprocess.Popen[bytes]]:
        """`horsies worker` on this stage; stopped gracefully at the end unless it is gone already."""
        command = self.horsies("worker", "--processes", str(processes), "--grace-s", "1")
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def horsies(self, *arguments: str) -> list[str]:
        """A command of this very installation."""
        return [sys.executable, "-m", "horsies_ops.cli", *arguments, "--config", str(self.config)]


@contextmanager
def stage() -> Generator[Stage]:
    """A stage with its server running; all of it is gone again afterwards."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="horsies-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # As root the server runs as another user, who must be able to enter.
        folder.chmod(0o755)
        made = Stage(folder)
        written = {
            "app": {"locator": "horsies.sample:app"},
            "broker": {"database_url": f"embedded://{folder}/embedded"},
            "recovery": RECOVERY,
            "tui": {"env": "demo"},
        }
        made.config.write_text(tomli_w.dumps(written), encoding="utf-8")
        with contextlib.chdir(folder):
            yield made
