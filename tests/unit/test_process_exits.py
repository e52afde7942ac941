"""The helpers with which fault tests see that a process has ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.support.workers import groups_alive, wait_for_exits


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own group, which is not reaped before the test ends."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def test_zombie_has_ended(process: subprocess.Popen[bytes]) -> None:
    watched = psutil.Process(process.pid)
    process.kill()
    assert wait_for_exits([watched], within_s=20) == []
    assert watched.status() == psutil.STATUS_ZOMBIE
    assert groups_alive({process.pid}) == []


def test_running_process_is_alive(process: subprocess.Popen[bytes]) -> None:
    watched = psutil.Process(process.pid)
    assert wait_for_exits([watched], within_s=0) == [watched]
    assert groups_alive({process.pid}) == [process.pid]
