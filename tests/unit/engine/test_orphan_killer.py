"""The helper that kills process groups, as a shell script and as a Python program."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies.engine.pool.orphan_killer import OrphanKiller, helper_command

COMMANDS = {"shell": helper_command(), "python": helper_command(Path("/no/shell"))}
KILLED = -9


@pytest.fixture
def groups() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_close_kills_the_remaining_groups(command: list[str], groups: list[subprocess.Popen[bytes]]) -> None:
    killer = OrphanKiller(command)
    for group in groups:
        killer.add_group(group.pid)
    killer.remove_group(groups[1].pid)
    groups[0].kill()
    assert groups[0].wait() == KILLED  # a group that is gone keeps none of the others alive
    killer.close()
    assert groups[2].wait(10) == KILLED
    assert groups[1].poll() is None


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_incomplete_line_does_not_count(command: list[str], groups: list[subprocess.Popen[bytes]]) -> None:
    kept, killed, _ = groups
    lines = f"{killed.pid}\n{kept.pid}".encode()  # the worker died while it wrote the second line
    subprocess.run(command, input=lines, check=False, timeout=30)
    assert killed.wait(10) == KILLED
    assert kept.poll() is None


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_helper_survives_the_signals_of_a_stopping_service(
    command: list[str], groups: list[subprocess.Popen[bytes]]
) -> None:
    """A service manager may send them to all processes, before the worker has ended."""
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert helper.stdin is not None
    _wait_until_signals_are_ignored(helper.pid)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        helper.send_signal(number)
    helper.communicate(f"{groups[0].pid}\n".encode(), timeout=30)
    assert groups[0].wait(10) == KILLED


def _wait_until_signals_are_ignored(pid: int) -> None:
    mask = 1 << (signal.SIGTERM - 1)
    deadline = time.monotonic() + 30
    while not int(Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16) & mask:
        assert time.monotonic() < deadline
        time.sleep(0.01)
