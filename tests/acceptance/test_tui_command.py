from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.support.cli import Executable
from tests.support.workers import wait_for_exits

DEMO_START_S = 120.0
"""For a database server and two workers, also on a busy machine."""


class Terminal:
    """A program on a pseudo-terminal, and all bytes it wrote."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.bytes = b""
        self._end, other_end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        self.program = subprocess.Popen(
            [sys.executable, "-m", "horsies_ops.cli", *arguments],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(other_end)

    def until(self, text: bytes, *, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.bytes:
            assert time.monotonic() < deadline, self.bytes[-2000:]
            self._read(0.1)

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def ended(self, *, within_s: float = 20.0) -> int:
        """Return the exit code; keeps reading, because the program would block on a full terminal."""
        deadline = time.monotonic() + within_s
        while self.program.poll() is None:
            assert time.monotonic() < deadline
            self._read(0.1)
        return self.program.returncode

    def hang_up(self) -> None:
        """Close the terminal, as when a window or a connection is lost."""
        os.close(self._end)

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self._end)

    def _read(self, timeout_s: float) -> None:
        if select.select([self._end], [], [], timeout_s)[0]:
            try:
                self.bytes += os.read(self._end, 65_536)
            except OSError:  # the program closed the terminal
                time.sleep(0.01)


def test_tui_needs_a_terminal(horsies: Executable) -> None:
    answer = horsies("tui", "--demo")
    assert answer.code == 2
    assert "needs a terminal" in answer.stderr


@pytest.mark.parametrize("ending", ["q", "SIGTERM"])
def test_demo_shows_sample_tasks_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="horsies-") as folder:
        Path(folder).chmod(0o755)  # as root, the server runs as another user who needs access
        monkeypatch.setenv("TMPDIR", folder)
        terminal = Terminal("tui", "--demo", folder=tmp_path)
        terminal.until(b"LIVE", within_s=DEMO_START_S)
        terminal.press(b"3")
        terminal.until(b"sample.", within_s=DEMO_START_S)
        processes = psutil.Process(terminal.program.pid).children(recursive=True)
        if ending == "q":
            terminal.press(b"q")
        else:
            terminal.program.terminate()
        assert terminal.ended(within_s=DEMO_START_S) == (0 if ending == "q" else 130)
        assert (b"stopping the workers" in terminal.bytes) == (ending == "q")
        terminal.close()
        assert wait_for_exits(processes, within_s=DEMO_START_S) == []
        assert list(Path(folder).iterdir()) == []


def test_tui_exits_when_its_terminal_is_gone(tmp_path: Path, database_url: str) -> None:
    """It is in a session of its own, so the kernel does not send it SIGHUP."""
    terminal = Terminal("tui", "--database-url", database_url, folder=tmp_path)
    terminal.until(b"LIVE")
    terminal.hang_up()
    assert terminal.program.wait(20) == 129


def test_conflicting_key_setting_is_rejected_before_drawing(tmp_path: Path) -> None:
    (tmp_path / "horsies.toml").write_text('[tui.keys]\n"op.requeue" = "r"\n')
    terminal = Terminal("tui", folder=tmp_path)
    assert terminal.ended() == 1
    terminal.close()
    assert b"capital letter" in terminal.bytes
    assert b"\x1b[?1049h" not in terminal.bytes


@pytest.mark.parametrize("command", ["task", "sweep", "doctor", "worker"])
def test_other_commands_do_not_import_textual(command: str) -> None:
    probe = (
        "import sys\nfrom horsies_ops.cli.options import COMMANDS\nfrom horsies_ops.cli.main import load_command\n"
        f"load_command({command!r}) if {command!r} in COMMANDS else None\nsys.exit('textual' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0
